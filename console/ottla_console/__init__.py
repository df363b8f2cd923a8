"""The console: a cluster in the browser. `ottla console -b HOST:PORT` serves it.

    command    the command; settings: its options and file
    app        the ASGI application: what every request goes through
    registry   the list of all pages
    pages/     a folder for each page, or for pages that belong together
    web/       sessions, guards, rendering, the page and its context
    views/     tables, charts, numbers as text: what view models are made of; pure
    cluster/   admin clients by principal, background collection, snapshots, problems

**How to add a page.**

1. Make the folder `pages/NAME/` with `__init__.py`, `view.py` and `NAME.html`; add one line to `registry`.
2. `view.py`: frozen dataclasses for what the page shows, and a pure function of the snapshot (or of what was
   read), `ctx.query()` and the time. Tables come from `views.tables.table_of`, charts from `views.charts`.
3. `__init__.py`: `async def show(ctx: Context) -> Response` awaits `ctx.snapshot("topics")` for what all
   pages share, or `ctx.reader.read(ctx.reader.admin.describe_acls(), "the ACLs", Need(...))` for details on
   demand, which gives a `Part`: a value, or problems that say which right is missing; `ctx.resources()` is
   what the operator says of the cluster, if it runs it. It ends with
   `return ctx.render("NAME/NAME.html", view)`.
4. `PAGES = (Page("NAME", show, "Title", nav=Nav("Data", "Title", 40)),)`. A tab of a topic or a group has
   `tab=Tab("topic", "Settings", 20)` in place of `nav`, and the path `topics/{name}/settings`.
5. The template: `{% extends layout %}`, `{% block head %}` above, `{% block live %}` for what refreshes
   itself, macros of `macros.html` (`table`, `problems`, `empty`), names by the filter `name`, numbers in
   cells `num`. No inline script, style or `style=`: the policy forbids them.
6. A change: `Page("NAME/delete", delete, "Delete", method="POST", changes=True)`, a form with
   `{{ csrf() }}`; in the endpoint `problem = await change(ctx, work, …)` of `web.changes`, which writes the
   audit line, then `ctx.redirect("NAME", flash="Deleted X.")`. Show the form only `{% if ctx.may_write %}`.
7. Tests: tables for `view.py` in `tests/unit/test_console_NAME.py`; the page in a browser in
   `tests/interop/console/`, whose `pages` fixture checks axe-core and hostile names.
"""
