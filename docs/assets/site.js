// The theme wraps what scrolls sideways while a page is shown, and forgets those who scroll by keyboard.
document$.subscribe(() => {
  for (const scrolled of document.querySelectorAll(".md-typeset__scrollwrap")) scrolled.tabIndex = 0;
});
