document.getElementById("page").textContent = "Trunkline";
