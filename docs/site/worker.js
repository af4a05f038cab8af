// Browsers refuse workers from files. Opened from disk, the site makes its search worker from this text instead.
(() => {
  if (location.protocol !== "file:") return;
  const FromFile = window.Worker;
  const text = @@worker@@;
  window.Worker = function () {
    return new FromFile(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  };
})();
