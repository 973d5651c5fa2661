// Uploads: the file as it is, with the secret in a header, so that the server need not hold it; its progress is shown.
"use strict";

const upload = document.getElementById("upload");
const told = document.getElementById("sent");
upload.hidden = false;
upload.addEventListener("submit", (event) => {
  event.preventDefault();
  const file = document.getElementById("file").files[0];
  const bar = upload.querySelector("progress");
  const button = upload.querySelector("button");
  const request = new XMLHttpRequest();
  bar.hidden = false;
  button.disabled = true;
  told.textContent = upload.dataset.running;
  request.upload.addEventListener("progress", (sent) => { if (sent.lengthComputable) bar.value = sent.loaded / sent.total; });
  const failed = (text) => { bar.hidden = true; button.disabled = false; told.textContent = text; };
  request.addEventListener("error", () => failed(upload.dataset.offline));
  request.addEventListener("load", () => {
    if (request.status === 200) { told.textContent = upload.dataset.done; location.assign(JSON.parse(request.responseText).to); return; }
    failed(new DOMParser().parseFromString(request.responseText, "text/html").body.textContent.trim());
  });
  request.open("POST", "/data/upload");
  request.setRequestHeader("X-CSRF-Token", csrf);
  request.setRequestHeader("X-File-Name", encodeURIComponent(file.name));
  request.setRequestHeader("HX-Request", "true");
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.send(file);
});
