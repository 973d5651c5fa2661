"""Every check rejects its mutants, and mutants are rejected by their checks alone."""

import pytest
from erniecore_conformance.checks import CHECKS
from erniecore_conformance.mutants import all_mutants

from erniecore.api.testing import KINDS

MUTANTS = all_mutants()


def test_every_kind_has_checks():
    assert set(CHECKS) == {"every", *KINDS}
    assert all(CHECKS.values())


def test_every_check_has_a_mutant():
    checks = {check.name for checks in CHECKS.values() for check in checks}
    assert checks == {mutant.check for mutant in MUTANTS}


def test_check_names_are_unique_and_say_their_kind():
    names = [(kind, check.name) for kind, checks in CHECKS.items() for check in checks]
    assert len({name for _, name in names}) == len(names)
    assert all(name.startswith(f"{kind}_") for kind, name in names)


def test_every_check_states_its_rule():
    for checks in CHECKS.values():
        for check in checks:
            assert len(check.rule) > 20, check.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.title)
def test_mutant_is_rejected_by_its_checks_alone(mutant):
    failed = {o.check: o.detail for o in mutant.outcomes() if o.status == "failed"}
    assert set(failed) == mutant.rejected_by, failed
