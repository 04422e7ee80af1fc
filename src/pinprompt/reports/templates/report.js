// The copy buttons: each copies the text of the <pre> beside it.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const shown = button.parentElement.querySelector("pre");
  try {
    await navigator.clipboard.writeText(shown.textContent);
    button.textContent = "copied";
  } catch {
    // Where a page may not write to the clipboard, the text is selected for the reader to copy.
    getSelection().selectAllChildren(shown);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  }
});
