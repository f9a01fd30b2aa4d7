"""A page to play with: plain HTML, CSS and JavaScript, and the trained nets that it runs in the browser.

There is no build step and no framework: `page/` is what is served, and `site` says which other files belong to it.
"""
