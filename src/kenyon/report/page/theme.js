// In the head, so that a remembered choice of colours is there before anything is painted.
try {
  const kept = localStorage.getItem("kenyon-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* no storage: the system's choice stays */ }
