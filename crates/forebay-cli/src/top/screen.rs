//! A terminal with its alternate screen, which is released at the end, at `q` and at Ctrl-C.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::view::Size;
use crate::output::print_raw;
use forebay_measure::cleanup::{Cleanup, Guard};

/// Enters the alternate screen without a cursor; the other one leaves it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Standard output as a screen.
pub(super) struct Screen {
    /// Returns the terminal to its normal screen when dropped.
    _guard: Guard,
}

impl Screen {
    /// Switches to the alternate screen. Returns `None` when standard output is not a terminal.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn open(cleanup: &Cleanup) -> io::Result<Option<Self>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        // Keys are read one by one without echo, if standard input is a terminal.
        let normal = tcgetattr(io::stdin()).ok();
        let keys = normal.clone().map(|mut keys| {
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys
        });
        let enter = || {
            if let Some(keys) = &keys {
                tcsetattr(io::stdin(), OptionalActions::Now, keys)?;
            }
            print_raw(ENTER)
        };
        let leave = move || {
            // The terminal may be closed; then the errors have no reader.
            let _ = print_raw(LEAVE);
            let _ = normal.map(|normal| tcsetattr(io::stdin(), OptionalActions::Now, &normal));
        };
        let ((), _guard) = cleanup.create(enter, leave)?;
        Ok(Some(Self { _guard }))
    }

    /// Waits for the interval, or until `q` is pressed. Returns whether it was.
    pub(super) fn quits_within(&self, interval: Duration) -> bool {
        let (until, stdin) = (Instant::now() + interval, io::stdin());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let (mut ready, mut key) = ([PollFd::new(&stdin, PollFlags::IN)], [0_u8]);
            match poll(&mut ready, timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) if rustix::io::read(&stdin, &mut key) == Ok(1) => {
                    if key == *b"q" {
                        return true;
                    }
                }
                // Standard input has ended, or a signal arrived.
                _ => {
                    std::thread::sleep(left);
                    return false;
                }
            }
        }
    }

    /// Returns the current size of the terminal, which may have been resized.
    pub(super) fn size(&self) -> Size {
        let found = rustix::termios::tcgetwinsize(io::stdout()).ok();
        let found = found.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        found.map_or_else(Size::default, |size| Size {
            columns: size.ws_col.into(),
            rows: Some(size.ws_row.into()),
        })
    }

    /// Shows `text`, overwriting line by line, so that nothing flickers.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn show(&self, text: &str) -> io::Result<()> {
        let mut frame = String::from("\x1b[H");
        for (number, line) in text.lines().enumerate() {
            let _ = write!(frame, "{}{line}\x1b[K", if number == 0 { "" } else { "\r\n" });
        }
        frame.push_str("\x1b[J");
        print_raw(&frame)
    }
}
