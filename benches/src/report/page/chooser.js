(function () {
  var form = document.getElementById("chooser");
  function show() {
    var key = Array.from(form.querySelectorAll("input:checked"), function (input) { return input.value; }).join(" ");
    document.querySelectorAll(".answer").forEach(function (answer) {
      answer.hidden = answer.dataset.for !== key;
      if (!answer.hidden) { mark(answer.dataset.column); }
    });
  }
  function mark(column) {
    document.querySelectorAll("#needs [data-column]").forEach(function (cell) {
      cell.classList.toggle("chosen", cell.dataset.column === column);
    });
  }
  form.addEventListener("change", show);
  form.hidden = false;
  show();
})();
