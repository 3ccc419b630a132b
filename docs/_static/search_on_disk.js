// Summaries of what was found are read from the pages, which a browser forbids to pages that it opened from the disk.
if (window.location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
