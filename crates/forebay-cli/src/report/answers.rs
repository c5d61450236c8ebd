//! The summary: five questions that show whether a program can use its storage, in this order, each with its figure.

mod questions;

use maud::{Markup, html};

use super::{columns, html as page, sections};
use crate::result::Report;

/// What can be said to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is so.
    Yes,
    /// It depends, on what the sentence says.
    Partly,
    /// It is not so.
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

/// A question with its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// The question.
    pub(crate) question: &'static str,
    /// What can be said.
    pub(crate) verdict: Verdict,
    /// The figure behind it, with its unit.
    pub(crate) figure: Option<String>,
    /// The figure in a sentence.
    pub(crate) sentence: String,
    /// The section that shows it.
    pub(crate) section: Option<usize>,
    /// The command that answers it, or answers it better.
    pub(crate) command: Option<&'static str>,
}

impl Answer {
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

/// The summary on the page.
pub(crate) fn of(report: &Report) -> Markup {
    let groups = columns::groups(&report.experiments);
    html! {
        section aria-labelledby="summary" {
            h2 id="summary" { "Five questions before buying more IOPS" }
            ol.answers {
                @for answer in answers(report) {
                    li {
                        h3 { (answer.question) }
                        p.answer {
                            span class=(answer.verdict.class()) { (answer.verdict.label()) }
                            @if let Some(figure) = &answer.figure { " " span.figure { (figure) } }
                        }
                        p { (page::prose(&answer.sentence)) }
                        @if answer.section.is_some() || answer.command.is_some() {
                            p.small {
                                @if let Some(section) = answer.section { (sections::link(section, &groups)) }
                                @if answer.section.is_some() && answer.command.is_some() { " · " }
                                @if let Some(command) = answer.command {
                                    @if answer.section.is_some() { "Says more: " } @else { "Answers it: " }
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

/// All five, in their order.
pub(crate) fn answers(report: &Report) -> [Answer; 5] {
    [
        questions::pattern(report),
        questions::saturated(report),
        questions::processor(report),
        questions::starving(report),
        questions::waiting(report),
    ]
}
