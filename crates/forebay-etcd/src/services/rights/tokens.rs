//! [`Tokens`]: simple tokens, as this member knows them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::accounts::Token;

/// Tokens that may be there before those that are over are looked for.
const SWEPT_FROM: usize = 64;

/// Tokens and their users. They are on each member; how long ago one was used is known where it is used.
#[derive(Default)]
pub(super) struct Tokens {
    all: HashMap<String, Holder>,
    ttl: Duration,
    sweep_at: usize,
}

struct Holder {
    user: Arc<str>,
    used: Instant,
}

impl Tokens {
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn insert(&mut self, token: Token) {
        if self.all.len() >= self.sweep_at.max(SWEPT_FROM) {
            let ttl = self.ttl;
            self.all.retain(|_, holder| holder.used.elapsed() < ttl);
            self.sweep_at = 2 * self.all.len();
        }
        self.all.insert(token.text, Holder { user: token.user.into(), used: Instant::now() });
    }

    /// Returns the user of a token, and restarts its time limit.
    pub(super) fn user(&mut self, token: &str) -> Option<Arc<str>> {
        let holder = self.all.get_mut(token)?;
        if holder.used.elapsed() >= self.ttl {
            self.all.remove(token);
            return None;
        }
        holder.used = Instant::now();
        Some(holder.user.clone())
    }

    /// Keeps the tokens of some users.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.all.retain(|_, holder| is_kept(&holder.user));
    }
}

impl fmt::Debug for Tokens {
    /// Without tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.all.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn token(user: &str, text: &str) -> Token {
        Token { user: user.into(), text: text.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_lives_as_long_as_it_is_used() {
        let mut tokens = Tokens::default();
        tokens.set_ttl(5 * S);
        tokens.insert(token("u", "a"));
        for _ in 0..10 {
            tokio::time::advance(4 * S).await;
            assert_eq!(tokens.user("a").as_deref(), Some("u"));
        }
        tokio::time::advance(5 * S).await;
        assert_eq!(tokens.user("a"), None);
        assert_eq!(tokens.user("b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_are_over_do_not_gather() {
        let mut tokens = Tokens::default();
        tokens.set_ttl(5 * S);
        for number in 0..10 * SWEPT_FROM {
            tokens.insert(token("u", &number.to_string()));
            tokio::time::advance(S).await;
        }
        assert!(tokens.all.len() <= SWEPT_FROM, "{}", tokens.all.len());
    }
}
