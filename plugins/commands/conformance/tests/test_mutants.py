"""Every check rejects its mutants, and mutants are rejected by their checks alone: `make test` tries a share of the checks that
must accept a mutant, `make test-all` every pair."""

import pytest
from erniecore_conformance.checks import CHECKS
from erniecore_conformance.mutants import all_mutants

from erniecore.api.testing import KINDS

MUTANTS = all_mutants()
#: one of so many of the checks that must accept a mutant is tried in `make test`, the others in `make test-all`
SHARES = 5


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


def failures(mutant, checks):
    return {o.check: o.detail for o in mutant.outcomes(checks) if o.status == "failed"}


def parted(number):
    """The checks of a mutant: those that must reject it and a share of the others, and what is left of them. The shares
    take turns, so that each check meets mutants that it has to accept."""
    mutant = MUTANTS[number]
    own = [check for check in mutant.concerned() if check.name in mutant.rejected_by]
    others = [check for check in mutant.concerned() if check.name not in mutant.rejected_by]
    return [*own, *others[number % SHARES :: SHARES]], [
        c for i, c in enumerate(others) if i % SHARES != number % SHARES
    ]


every_mutant = pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[mutant.title for mutant in MUTANTS])


@every_mutant
def test_mutant_is_rejected_by_its_checks_alone(number):
    found = failures(MUTANTS[number], parted(number)[0])
    assert set(found) == MUTANTS[number].rejected_by, found


@pytest.mark.combination
@every_mutant
def test_no_further_check_rejects_the_mutant(number):
    assert failures(MUTANTS[number], parted(number)[1]) == {}
