//! A comparison as text.

use std::fmt::Write as _;

use super::{Change, Changed, Comparison, Direction, Figure, Origin};
use crate::units::number;

impl Comparison {
    /// Formats the comparison for human readers.
    pub fn to_text(&self) -> String {
        let mut text = format!("first:  {}\nsecond: {}\n", origin(&self.first), origin(&self.second));
        let unlike = self.unlike.iter().map(|unlike| {
            format!("not measured alike: {}: {}", unlike.experiment, unlike.parameters.join(", "))
        });
        // Writing to a String cannot fail.
        for line in unlike.chain(self.unpaired()) {
            let _ = writeln!(text, "{line}");
        }
        if !self.rows.is_empty() {
            text.push_str("\nchanged beyond noise\n");
            self.rows.iter().for_each(|row| row_text(&mut text, row));
        }
        let _ = write!(
            text,
            "\n{} figures compared: {} changed beyond noise, {} alike, {} unclear",
            self.compared, self.changed, self.alike, self.unclear
        );
        match (self.unclear, self.repeats_needed) {
            (0, _) => text.push('\n'),
            (_, Some(repeats)) => {
                let _ = writeln!(
                    text,
                    ": {repeats} repeats of both are needed (--repeats {repeats}), for half of these"
                );
            }
            (_, None) => text.push_str(": they vary too much from run to run\n"),
        }
        text
    }

    /// Returns the parts that only one of the two results has.
    pub fn unpaired(&self) -> Vec<String> {
        let first = self.only_in_first.iter().map(|label| format!("only in the first: {label}"));
        first.chain(self.only_in_second.iter().map(|label| format!("only in the second: {label}"))).collect()
    }
}

fn origin(origin: &Origin) -> String {
    let path = origin.path.as_deref().unwrap_or("no path");
    format!("forebay {}, {}, {path}", origin.forebay, origin.kernel)
}

fn row_text(text: &mut String, row: &Changed) {
    let doubt = if row.marked_in.is_empty() {
        String::new()
    } else {
        format!("  (!) failed a gate in the {} result", row.marked_in.join(" and the "))
    };
    let _ = writeln!(text, "  {}.{}{doubt}", row.experiment, row.row);
    if let Some(why) = &row.no_longer_measured {
        let _ = writeln!(text, "    no longer measured: {why}");
    }
    if let Some(why) = &row.not_measured_before {
        let _ = writeln!(text, "    was not measured before: {why}");
    }
    for change in &row.changes {
        let (first, second) = (figure(&change.first), figure(&change.second));
        let description = description(change);
        let _ =
            writeln!(text, "    {} ({}): {first} -> {second}: {description}", change.metric, change.heading);
    }
}

fn description(change: &Change) -> String {
    match (change.change, change.times) {
        (Direction::More, Some(times)) => format!("{} times more", number(times)),
        (Direction::Less, Some(times)) => format!("{} times less", number(times)),
        (Direction::More, None) => "was nothing".to_owned(),
        (Direction::Less, None) => "is 0 now".to_owned(),
    }
}

/// Formats a figure with the range of its repeats: `1,000 (900 to 1,100)`.
fn figure(figure: &Figure) -> String {
    let median = number(figure.median);
    if figure.repeats > 1 {
        format!("{median} ({} to {})", number(figure.smallest), number(figure.largest))
    } else {
        format!("{median} (once)")
    }
}
