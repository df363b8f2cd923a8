"""What the view models of pages are made of; pure, no page here.

formats   numbers, sizes, rates, times and names as text
tables    rows -> searched, sorted, in pages; columns with links to sort by
configs   settings of topics and brokers as rows
charts    numbers -> SVG: sparklines, lines over time, bars
"""
