//! The summary: five questions that show whether a program can use its storage, in this order, each with its figure.

mod derive;

use maud::{Markup, html};

use super::{columns, html as page, sections};
use crate::result::Report;

/// The possible verdicts on a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Yes,
    /// Depends on a condition that the sentence gives.
    Partly,
    /// No.
    No,
    /// A figure, where there is no yes or no.
    Measured,
    /// The experiment was not run.
    Unknown,
}

impl Verdict {
    fn label(self) -> &'static str {
        match self {
            Self::Yes => "Yes",
            Self::Partly => "Partly",
            Self::No => "No",
            Self::Measured => "Measured",
            Self::Unknown => "Not measured",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Yes => "verdict yes",
            Self::Partly => "verdict partly",
            Self::No => "verdict no",
            Self::Measured | Self::Unknown => "verdict unknown",
        }
    }
}

/// A question with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyQuestion {
    /// The question.
    pub question: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure behind it, with its unit.
    pub figure: Option<String>,
    /// A sentence with the figure.
    pub sentence: String,
    /// Number of the section with the measurement.
    pub section: Option<usize>,
    /// The command that measures it, or measures it better.
    pub command: Option<&'static str>,
}

impl KeyQuestion {
    fn unknown(question: &'static str, sentence: &str, command: &'static str) -> Self {
        Self {
            question,
            verdict: Verdict::Unknown,
            figure: None,
            sentence: sentence.to_owned(),
            section: None,
            command: Some(command),
        }
    }
}

/// Returns the summary on the page.
pub fn of(report: &Report) -> Markup {
    let groups = columns::groups(&report.experiments);
    html! {
        section aria-labelledby="summary" {
            h2 id="summary" { "Five questions before buying more IOPS" }
            ol.answers {
                @for key in key_questions(report) {
                    li {
                        h3 { (key.question) }
                        p.answer {
                            span class=(key.verdict.class()) { (key.verdict.label()) }
                            @if let Some(figure) = &key.figure { " " span.figure { (figure) } }
                        }
                        p { (page::prose(&key.sentence)) }
                        @if key.section.is_some() || key.command.is_some() {
                            p.small {
                                @if let Some(section) = key.section { (sections::link(section, &groups)) }
                                @if key.section.is_some() && key.command.is_some() { " · " }
                                @if let Some(command) = key.command {
                                    @if key.section.is_some() { "More: " } @else { "Measured by: " }
                                    code { (command) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns all five, in their order.
pub fn key_questions(report: &Report) -> [KeyQuestion; 5] {
    [
        derive::pattern(report),
        derive::saturated(report),
        derive::processor(report),
        derive::starving(report),
        derive::waiting(report),
    ]
}
