"""Made-up distributions for tests of the registry, the settings and the command line: real metadata, real imports."""

from sites import site as site  # the fixture
from sites import toys as toys
from warmed import one_revision as one_revision
from warmed import warm as warm
from warmed import warm_ranks as warm_ranks
