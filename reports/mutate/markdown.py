"""A mutation run as Markdown, for the summary of a job."""

from __future__ import annotations

from harness.store.mutate.values import FaultResult, MutationRun
from reports.mutate import view
from reports.shared import markdown
from reports.shared.markdown import escape_text, render_code, render_code_block

MAX_SURVIVORS = 50  # survivors of one function with their diff; GitHub limits the size


def render_markdown(run: MutationRun) -> str:
    mutation_view = view.make_view(run)
    parts = [
        markdown.render_heading("Mutation", run.green),
        view.describe_run(run),
        markdown.render_list(run.problems),
    ]
    if run.fates:
        groups = (("family", mutation_view.families), ("operator", mutation_view.operators))
        parts += [markdown.render_report_table(view.make_score_table(*one)) for one in groups]
    for group in mutation_view.survivors:
        parts.append(f"### {len(group.results)} survived in {render_code(group.name)}")
        parts += [_render_survivor(run, result) for result in group.results[:MAX_SURVIVORS]]
    for group in mutation_view.without_evidence:
        parts.append(f"### {len(group.results)} without evidence in {render_code(group.name)}")
        parts += [_render_survivor(run, result) for result in group.results[:MAX_SURVIVORS]]
    notes = [
        f"{len(group.results)} unreached in {render_code(group.name)}"
        for group in mutation_view.unreached
    ]
    notes += [escape_text(run.elsewhere)] if run.elsewhere else []
    notes += [f"not run: {escape_text(reason)}" for reason in run.left_out]
    notes += [escape_text(mutation_view.stand_ins)] if mutation_view.stand_ins else []
    parts.append("\n".join(f"- {note}" for note in notes))
    return markdown.join_parts(parts)


def _render_survivor(run: MutationRun, result: FaultResult) -> str:
    fault = result.fault
    return markdown.join_parts(
        [
            f"**{fault.id}** {escape_text(fault.words)} ({render_code(fault.operator)}, line "
            f"{fault.line})  \n{escape_text(view.describe_outcome(result))}  \n"
            f"{render_code(view.make_replay_command(run, result))}",
            render_code_block(result.diff.strip(), "diff"),
        ]
    ).rstrip()
