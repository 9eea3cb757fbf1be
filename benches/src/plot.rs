//! The run as a picture: SVG and PNG from one drawing, beside the JSON.

use std::path::Path;

use anyhow::{Result, anyhow};
use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        FontStyle, register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::{
    rung::Rung,
    series::{Measure, Series},
    stats,
};

const SIZE: (u32, u32) = (1500, 1060);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x2b, 0x38);
const FAINT: RGBColor = RGBColor(0x8a, 0x94, 0xa3);
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xee);
const OURS: RGBColor = RGBColor(0x0f, 0x8b, 0x8d);
const THEIRS: RGBColor = RGBColor(0xb4, 0xbd, 0xca);
const BOUND: RGBColor = RGBColor(0xdd, 0xe2, 0xe9);

type Area<'a, B> = DrawingArea<B, Shift>;

/// One panel: what it shows, and which way is better.
struct Panel {
    title: &'static str,
    measure: Measure,
    flows: u32,
    ports: u16,
    better: &'static str,
}

const PANELS: [Panel; 6] = [
    panel("60-byte UDP, 1024 flows", Measure::Packet, 1024, 1),
    panel("60-byte UDP, 1 M flows", Measure::Packet, 1 << 20, 2),
    panel("from a TUN device: 46-byte UDP", Measure::TunUdp, 1, 1),
    panel("from a TUN device: 16 KiB TCP super-packet", Measure::TunTcpGso, 1, 1),
    Panel {
        better: "more is better",
        ..panel("new TCP connections, 1 port", Measure::TcpCrr, 1, 1)
    },
    Panel {
        better: "more is better",
        ..panel("new TCP connections, 1000 ports", Measure::TcpCrr, 1, 1000)
    },
];

const fn panel(title: &'static str, measure: Measure, flows: u32, ports: u16) -> Panel {
    Panel { title, measure, flows, ports, better: "less is better" }
}

/// Draws the run beside `json`, with the endings `.svg` and `.png`.
pub fn write(series: &[Series], json: &Path) -> Result<()> {
    // The font comes with the program, so that a picture looks the same on every machine.
    register_font(FONT, FontStyle::Normal, UBUNTU_LIGHT)
        .map_err(|_| anyhow!("the built-in font is not a font"))?;
    let (svg, png) = (json.with_extension("svg"), json.with_extension("png"));
    draw(&SVGBackend::new(&svg, SIZE).into_drawing_area(), series)
        .map_err(|error| anyhow!("drawing {}: {error}", svg.display()))?;
    draw(&BitMapBackend::new(&png, SIZE).into_drawing_area(), series)
        .map_err(|error| anyhow!("drawing {}: {error}", png.display()))
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn draw<B: DrawingBackend>(area: &Area<'_, B>, series: &[Series]) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(96);
    let title = (FONT, 34).into_font().color(&INK);
    head.draw(&Text::new("Sluice beside the kernel's own ways", (36, 26), title))?;
    let note = (FONT, 19).into_font().color(&FAINT);
    let text = "medians of interleaved rounds on one machine, whiskers from quartile to quartile; compare within a panel only";
    head.draw(&Text::new(text, (36, 66), note))?;
    for (panel, cell) in PANELS.iter().zip(body.split_evenly((3, 2))) {
        draw_panel(&cell, panel, series)?;
    }
    area.present()
}

fn draw_panel<B: DrawingBackend>(
    cell: &Area<'_, B>,
    panel: &Panel,
    all: &[Series],
) -> Result<(), Failure<B>> {
    const LEFT: i32 = 200;
    let wanted = (panel.measure, panel.flows, panel.ports);
    let bars: Vec<_> = all
        .iter()
        .filter(|series| (series.measure, series.flows, series.ports) == wanted)
        .filter_map(|series| Some((series.rung, stats::quartiles(&series.values)?)))
        .collect();
    let (width, height) = cell.dim_in_pixel();
    let title = (FONT, 23).into_font().color(&INK);
    cell.draw(&Text::new(panel.title, (36, 8), title))?;
    let note = FONT_SMALL.into_font().color(&FAINT);
    let end = width as i32 - 40;
    let right = note.clone().pos(Pos::new(HPos::Right, VPos::Top));
    cell.draw(&Text::new(format!("{}, {}", panel.measure.unit(), panel.better), (end, 12), right))?;
    if bars.is_empty() {
        return cell.draw(&Text::new("not measured in this run", (LEFT, 60), note));
    }
    let most = bars.iter().map(|(_, q)| q.high).fold(f64::MIN_POSITIVE, f64::max);
    let (top, room) = (46, end - LEFT - 80);
    let scale = |value: f64| LEFT + (value / most * f64::from(room)) as i32;
    let step = (height as i32 - top - 14) / bars.len() as i32;
    let thick = (step * 7 / 10).min(24);
    for quarter in 0..=4 {
        let x = scale(most * f64::from(quarter) / 4.0);
        let line = [(x, top), (x, top + step * bars.len() as i32)];
        cell.draw(&PathElement::new(line, GRID))?;
    }
    for ((rung, q), row) in bars.iter().zip(0..) {
        let y = top + row * step + (step - thick) / 2;
        let middle = y + thick / 2;
        let colour = colour(*rung);
        let text = if rung.is_ours() { OURS } else { INK };
        let name = FONT_SMALL.into_font().color(&text);
        let name = name.pos(Pos::new(HPos::Right, VPos::Center));
        cell.draw(&Text::new(rung.label(), (LEFT - 10, middle), name))?;
        let bar = [(LEFT, y), (scale(q.median), y + thick)];
        cell.draw(&Rectangle::new(bar, colour.filled()))?;
        cell.draw(&PathElement::new([(scale(q.low), middle), (scale(q.high), middle)], INK))?;
        for edge in [q.low, q.high] {
            let tick = [(scale(edge), middle - 3), (scale(edge), middle + 3)];
            cell.draw(&PathElement::new(tick, INK))?;
        }
        let value = FONT_SMALL.into_font().color(&INK);
        let value = value.pos(Pos::new(HPos::Left, VPos::Center));
        let at = (scale(q.high.max(q.median)) + 8, middle);
        cell.draw(&Text::new(format!("{:.0}", q.median), at, value))?;
    }
    Ok(())
}

const FONT_SMALL: (&str, i32) = (FONT, 17);

const fn colour(rung: Rung) -> RGBColor {
    match rung {
        rung if rung.is_ours() => OURS,
        Rung::XdpDrop | Rung::XdpRedirect => BOUND,
        _ => THEIRS,
    }
}
