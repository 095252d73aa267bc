//! The table that a benchmark prints: what was measured, beside what it must reach.

/// What a figure must reach.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    Exactly(f64),
    /// For the reader only.
    None,
}

/// Rows of measure, value, target and detail.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// A figure with its target.
    pub(crate) fn figure(&mut self, measure: impl Into<String>, value: f64, target: Target, detail: impl Into<String>) {
        // Compared as printed, so that the table can't contradict itself.
        let text = text(value);
        let shown: f64 = text.parse().unwrap_or(value);
        let (wanted, reached) = match target {
            Target::AtLeast(least) => (format!(">= {least:.2}"), Some(shown >= least)),
            Target::AtMost(most) => (format!("<= {most}"), Some(shown <= most)),
            Target::Exactly(exactly) => (format!("= {exactly}"), Some((shown - exactly).abs() < f64::EPSILON)),
            Target::None => (String::new(), None),
        };
        let verdict = match reached {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        self.rows.push([measure.into(), text, wanted, verdict.to_owned(), detail.into()]);
    }

    /// Prints it.
    pub(crate) fn print(&self, title: &str) {
        let head = ["measure", "value", "target", "", "detail"].map(str::to_owned);
        let mut widths = [0; 5];
        for row in std::iter::once(&head).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        println!("\n{title}\n");
        for row in std::iter::once(&head).chain(&self.rows) {
            let [measure, value, target, verdict, detail] = row;
            let [a, b, c, d, _] = widths;
            println!("{}", format!("{measure:a$}  {value:>b$}  {target:c$}  {verdict:d$}  {detail}").trim_end());
        }
        println!();
    }
}

fn text(value: f64) -> String {
    if value.abs() >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
