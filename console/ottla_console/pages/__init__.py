"""The pages: a folder for each, with endpoints (`__init__`), view models (`view`, pure) and templates.

Pages import nothing of each other. A folder exports `PAGES`, which `registry` lists.
"""
