// A line of a ladder that is pointed at, or has the focus, is lit with all that it is in the other panes.
for (const levels of document.querySelectorAll(".levels")) {
  const linked = (pane) => [...pane.querySelectorAll("[data-at]")]
  const panes = [...levels.querySelectorAll(".pane")]
  const show = (line, follow) => {
    const at = line.dataset.at.split(" ")[0], counts = []
    for (const one of levels.querySelectorAll(".lit")) one.classList.remove("lit")
    for (const pane of panes) {
      const lit = linked(pane).filter((one) => one.dataset.at.split(" ").includes(at))
      for (const one of lit) one.classList.add("lit")
      if (lit.length) counts.push(`${lit.length} in ${pane.querySelector("h3").textContent}`)
      if (follow && lit.length && !pane.contains(line)) pane.scrollTop = lit[0].offsetTop - pane.clientHeight / 3
    }
    if (follow) levels.querySelector("output").textContent = `Lines: ${counts.join(", ")}`
  }
  levels.addEventListener("mouseover", (event) => {
    const line = event.target.closest("[data-at]")
    if (line) show(line, false)
  })
  levels.addEventListener("focus", (event) => {
    const line = event.target.closest("[data-at]")
    if (!line) return
    for (const one of line.parentElement.querySelectorAll("[tabindex='0']")) one.tabIndex = -1
    line.tabIndex = 0
    show(line, true)
  }, true)
  levels.addEventListener("keydown", (event) => {
    const line = event.target.closest("[data-at]")
    if (!line) return
    const index = panes.indexOf(line.closest(".pane")), lines = linked(panes[index]), number = lines.indexOf(line)
    const beside = (step) => {
      for (let other = index + step; panes[other]; other += step) {
        const first = panes[other].querySelector(".lit") || panes[other].querySelector("[data-at]")
        if (first) return first
      }
    }
    const to = { ArrowDown: () => lines[number + 1], ArrowUp: () => lines[number - 1],
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1) }[event.key]
    if (!to) return
    event.preventDefault()
    to()?.focus()
  })
}
