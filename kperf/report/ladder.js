for (const section of document.querySelectorAll("section")) {
  const panes = [...section.querySelectorAll(".pane")].map((pane) => [pane, [...pane.querySelectorAll("[data-at]")]])
  const show = (line, follow) => {
    const at = line.dataset.at.split(" ")[0], counts = []
    for (const [pane, lines] of panes) {
      const lit = lines.filter((one) => one.dataset.at.split(" ").includes(at))
      for (const one of pane.querySelectorAll(".lit")) one.classList.remove("lit")
      for (const one of lit) one.classList.add("lit")
      if (lit.length) counts.push(`${lit.length} in ${pane.querySelector("h3").textContent}`)
      if (follow && lit.length && !pane.contains(line)) pane.scrollTop = lit[0].offsetTop - pane.clientHeight / 3
    }
    if (follow) section.querySelector("output").textContent = `Lines: ${counts.join(", ")}`
  }
  panes.forEach(([pane, lines], index) => {
    for (const [number, line] of lines.entries()) {
      line.addEventListener("mouseenter", () => show(line, false))
      line.addEventListener("focus", () => {
        for (const one of lines) one.tabIndex = one === line ? 0 : -1
        show(line, true)
      })
      line.addEventListener("keydown", (event) => {
        const beside = (step) => {
          for (let other = index + step; panes[other]; other += step)
            if (panes[other][1].length) return panes[other][0].querySelector(".lit") || panes[other][1][0]
        }
        const to = { ArrowDown: () => lines[number + 1], ArrowUp: () => lines[number - 1],
          ArrowRight: () => beside(1), ArrowLeft: () => beside(-1) }[event.key]
        if (!to) return
        event.preventDefault()
        to()?.focus()
      })
    }
  })
}
