//! What may happen to the layer below a log or a store, before, during and after one of its calls. In a simulated world.

use std::future::Future;

use forebay::Engine;
use forebay::sim::{self, Fault, Rule};

/// What happens to the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// Nothing.
    Works,
    /// The program's handle of the engine is dropped.
    EngineDropped,
    /// The engine is closed.
    EngineClosed,
    /// Its calls fail from now on.
    Fails(Fault),
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the call.
    Before,
    /// After the call was polled some times.
    During,
    /// After the call has returned.
    After,
}

impl Below {
    /// Each of them.
    pub const ALL: [Self; 6] = [
        Self::Works,
        Self::EngineDropped,
        Self::EngineClosed,
        Self::Fails(Fault::WriteError),
        Self::Fails(Fault::FlushError),
        Self::Fails(Fault::NoSpace),
    ];

    /// Makes a call, with this at that moment; `polls` counts for [`Moment::During`]. Returns the call's output.
    pub async fn around<T>(
        self,
        moment: Moment,
        polls: usize,
        engine: Engine,
        call: impl Future<Output = T>,
    ) -> T {
        match moment {
            Moment::Before => {
                let _engine = self.strike(engine).await;
                call.await
            }
            Moment::During => {
                let going = sim::frozen_after(polls, Box::pin(call)).await;
                let _engine = self.strike(engine).await;
                match going {
                    Ok(done) => done,
                    Err(going) => going.await,
                }
            }
            Moment::After => {
                let done = call.await;
                drop(self.strike(engine).await);
                done
            }
        }
    }

    /// Returns the engine if the program still has it.
    async fn strike(self, engine: Engine) -> Option<Engine> {
        match self {
            Self::Works => {}
            Self::EngineDropped => return None,
            Self::EngineClosed => {
                let _ = engine.close().await;
                return None;
            }
            Self::Fails(fault) => sim::inject(Rule::new(fault)),
        }
        Some(engine)
    }
}

impl Moment {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Before, Self::During, Self::After];
}
