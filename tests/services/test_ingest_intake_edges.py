"""A connector's reader where two things meet that are rare alone; test_ingest_intake.py has the
usual ones."""

from __future__ import annotations

from tests.services.intake_stage import Stage, change
from tests.services.test_ingest_intake import on_a_stage


@on_a_stage
async def test_one_that_runs_does_not_go_on_at_now_where_its_positions_are_lost(
    stage: Stage,
) -> None:
    """It has begun, whether or not it has heard from the coordinator that this is known."""
    stage.history.commit(*(change(number) for number in range(20)))
    await stage.until(lambda: not stage.behind())
    stage.history.is_away = True
    await stage.until_state("retrying")
    stage.history.commit(*(change(number) for number in range(20, 40)))
    for partition in stage.log.partitions.values():
        partition.intakes.clear()
    stage.history.is_away = False
    said = await stage.until_state("history-lost")
    assert "none of its positions is stored" in said.error
