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

use crate::stats::Quartiles;

const WIDTH: u32 = 1500;
const HEAD: u32 = 96;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x2b, 0x38);
const FAINT: RGBColor = RGBColor(0x8a, 0x94, 0xa3);
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xee);
const OURS: RGBColor = RGBColor(0x0f, 0x8b, 0x8d);
const THEIRS: RGBColor = RGBColor(0xb4, 0xbd, 0xca);
const BOUND: RGBColor = RGBColor(0xdd, 0xe2, 0xe9);

type Area<'a, B> = DrawingArea<B, Shift>;

/// What a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ours,
    Theirs,
    /// Not a way to do it: what nothing can surpass.
    Bound,
}

/// One way.
#[derive(Clone, Debug)]
pub struct Bar {
    pub label: &'static str,
    pub kind: Kind,
    pub quartiles: Quartiles,
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Panel {
    pub title: String,
    /// The unit, and which way is better.
    pub note: String,
    /// Digits behind the point.
    pub digits: usize,
    pub bars: Vec<Bar>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Picture {
    pub title: &'static str,
    /// Two in a row, from left to right.
    pub panels: Vec<Panel>,
    /// Pixels of a row.
    pub row: u32,
}

/// Draws the run beside `json`, with the endings `.svg` and `.png`.
pub fn write(picture: &Picture, json: &Path) -> Result<()> {
    // The font comes with the program, so that a picture looks the same on every machine.
    register_font(FONT, FontStyle::Normal, UBUNTU_LIGHT)
        .map_err(|_| anyhow!("the built-in font is not a font"))?;
    let (svg, png) = (json.with_extension("svg"), json.with_extension("png"));
    let size = (WIDTH, HEAD + picture.row * picture.panels.len().div_ceil(2) as u32);
    draw(&SVGBackend::new(&svg, size).into_drawing_area(), picture)
        .map_err(|error| anyhow!("drawing {}: {error}", svg.display()))?;
    draw(&BitMapBackend::new(&png, size).into_drawing_area(), picture)
        .map_err(|error| anyhow!("drawing {}: {error}", png.display()))
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn draw<B: DrawingBackend>(area: &Area<'_, B>, picture: &Picture) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(HEAD);
    let title = (FONT, 34).into_font().color(&INK);
    head.draw(&Text::new(picture.title, (36, 26), title))?;
    let note = (FONT, 19).into_font().color(&FAINT);
    let text = "medians of interleaved rounds on one machine, whiskers from quartile to quartile; compare within a panel only";
    head.draw(&Text::new(text, (36, 66), note))?;
    let cells = body.split_evenly((picture.panels.len().div_ceil(2), 2));
    for (panel, cell) in picture.panels.iter().zip(cells) {
        draw_panel(&cell, panel)?;
    }
    area.present()
}

fn draw_panel<B: DrawingBackend>(cell: &Area<'_, B>, panel: &Panel) -> Result<(), Failure<B>> {
    const LEFT: i32 = 200;
    let (bars, digits) = (&panel.bars, panel.digits);
    let (width, height) = cell.dim_in_pixel();
    let title = (FONT, 23).into_font().color(&INK);
    cell.draw(&Text::new(panel.title.as_str(), (36, 8), title))?;
    let note = FONT_SMALL.into_font().color(&FAINT);
    let end = width as i32 - 40;
    let right = note.clone().pos(Pos::new(HPos::Right, VPos::Top));
    cell.draw(&Text::new(panel.note.as_str(), (end, 12), right))?;
    if bars.is_empty() {
        return cell.draw(&Text::new("not measured in this run", (LEFT, 60), note));
    }
    let most = bars.iter().map(|bar| bar.quartiles.high).fold(f64::MIN_POSITIVE, f64::max);
    let (top, room) = (46, end - LEFT - 80);
    let scale = |value: f64| LEFT + (value / most * f64::from(room)) as i32;
    let step = (height as i32 - top - 14) / bars.len() as i32;
    let thick = (step * 7 / 10).min(24);
    for quarter in 0..=4 {
        let x = scale(most * f64::from(quarter) / 4.0);
        let line = [(x, top), (x, top + step * bars.len() as i32)];
        cell.draw(&PathElement::new(line, GRID))?;
    }
    for (Bar { label, kind, quartiles: q }, row) in bars.iter().zip(0..) {
        let y = top + row * step + (step - thick) / 2;
        let middle = y + thick / 2;
        let (colour, text) = match kind {
            Kind::Ours => (OURS, OURS),
            Kind::Theirs => (THEIRS, INK),
            Kind::Bound => (BOUND, INK),
        };
        let name = FONT_SMALL.into_font().color(&text);
        let name = name.pos(Pos::new(HPos::Right, VPos::Center));
        cell.draw(&Text::new(*label, (LEFT - 10, middle), name))?;
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
        cell.draw(&Text::new(format!("{:.digits$}", q.median), at, value))?;
    }
    Ok(())
}

const FONT_SMALL: (&str, i32) = (FONT, 17);
