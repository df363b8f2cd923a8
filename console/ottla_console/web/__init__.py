"""What every page of the console stands on: sessions, guards, rendering.

    sessions   who has logged in where: opaque ids, CSRF tokens, idle time-out
    guard      hosts, origins, security headers; the rules are pure functions
    page       a page as the registry lists it, and the context that its endpoint gets
    rendering  Jinja's environment: escaping, filters, URLs
    login      the list of clusters, log-in and log-out, favourites

`templates/` has the layout and the macros of all pages, `static/` the style sheet, a small script, and htmx
(its licence beside it).
"""
