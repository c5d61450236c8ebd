//! Requests of a stream, read before the replies to earlier requests are sent.
//!
//! A client may send thousands of small requests before it reads a reply. Those that are left unread count against the connection's
//! budget of small frames, and it is closed with all its streams once that is used up: see [`Ahead`]. A long request takes the places
//! of many, as nothing was checked yet of those that wait.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Status, Streaming};

use super::guard::too_long;

/// Requests of one stream that wait, or whose replies do. Further requests wait for the stream's window.
pub(crate) const STREAM_MAX: usize = 65_536;
/// Those of all streams. Beyond it each stream has one request at a time.
pub(super) const ALL_MAX: usize = 1 << 20;
/// Bytes of a request with one place; a longer request takes more of them.
const PLACE_BYTES: usize = 256;

/// The places of a request, until its reply is handed on.
#[derive(Debug)]
pub(super) struct Place {
    _own: OwnedSemaphorePermit,
    _shared: Option<OwnedSemaphorePermit>,
}

/// The requests of a stream. A task reads them from the connection as they arrive, while places are free.
#[derive(Debug)]
pub(super) struct Ahead<T> {
    arrived: mpsc::UnboundedReceiver<(T, Place)>,
    refused: Arc<OnceLock<Status>>,
}

impl<T: Message + 'static> Ahead<T> {
    /// Starts to read. `shared` has [`ALL_MAX`] places.
    pub(super) fn new(mut requests: Streaming<T>, shared: Arc<Semaphore>) -> Ahead<T> {
        let (arrives, arrived) = mpsc::unbounded_channel();
        let refused = Arc::new(OnceLock::new());
        let noted = refused.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = arrives.closed() => {}
                read = read(&mut requests, &shared, &arrives) => {
                    // Of a lost connection nobody is told.
                    if let Err(status) = read && status.source().is_none() {
                        let _ = noted.set(too_long(&status).unwrap_or(status));
                    }
                }
            }
            // The end is seen after its reason.
            drop(arrives);
        });
        Ahead { arrived, refused }
    }

    /// Returns why there are no more requests, if the client has not ended them: it has sent one that is malformed, or too long.
    pub(super) fn refusal(&self) -> Option<Status> {
        self.refused.get().cloned()
    }

    /// Returns the next request; `None` after the last one. Cancelling it loses nothing.
    pub(super) async fn next(&mut self) -> Option<(T, Place)> {
        self.arrived.recv().await
    }

    /// Adds all requests that have arrived, at least one; after the last request it adds nothing. Cancelling it loses nothing.
    pub(super) async fn next_all(&mut self, requests: &mut Vec<(T, Place)>) {
        self.arrived.recv_many(requests, STREAM_MAX).await;
    }
}

async fn read<T: Message>(
    requests: &mut Streaming<T>,
    shared: &Arc<Semaphore>,
    arrives: &mpsc::UnboundedSender<(T, Place)>,
) -> Result<(), Status> {
    let own = Arc::new(Semaphore::new(STREAM_MAX));
    // No semaphore is closed.
    while let Ok(mut place) = own.clone().acquire_owned().await
        && let Some(request) = requests.message().await?
    {
        let more = (request.encoded_len() / PLACE_BYTES).min(STREAM_MAX - 1) as u32;
        if more > 0
            && let Ok(others) = own.clone().acquire_many_owned(more).await
        {
            place.merge(others);
        }
        let of_all = shared.clone().try_acquire_many_owned(1 + more).ok();
        if of_all.is_none() {
            drop(own.acquire_many(STREAM_MAX as u32 - 1 - more).await);
        }
        if arrives.send((request, Place { _own: place, _shared: of_all })).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, StreamExt};
    use tonic::codec::Codec;

    use super::*;
    use crate::proto::etcdserverpb::{CompactionRequest, LeaseKeepAliveRequest, PutRequest};

    /// A stream whose client has sent this many of these requests, and is there.
    fn stream_of<T: Message + Default + 'static>(count: usize, request: &T) -> Streaming<T> {
        let message = request.encode_to_vec();
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes()[..], &message[..]].concat();
        let frames = (0..count).map(move |_| Ok::<_, Infallible>(frame.clone()));
        let frames = futures_util::stream::iter(frames).chain(futures_util::stream::pending());
        let codec = tonic_prost::ProstCodec::<T, T>::default();
        Streaming::new_request({ codec }.decoder(), axum::body::Body::from_stream(frames), None, None)
    }

    /// One of keep-alives of empty ids.
    fn stream(count: usize) -> Streaming<LeaseKeepAliveRequest> {
        stream_of(count, &LeaseKeepAliveRequest::default())
    }

    /// Returns the requests that arrive while their places are kept.
    async fn arrived<T: Message + 'static>(ahead: &mut Ahead<T>) -> Vec<(T, Place)> {
        let mut arrived = Vec::new();
        // The task that reads never waits for anything but the test: so it has done all it can after its turns.
        for _ in 0..100 {
            tokio::task::yield_now().await;
            let _ = ahead.next_all(&mut arrived).now_or_never();
        }
        arrived
    }

    /// Streams whose clients read no replies could occupy all places of the server.
    #[tokio::test]
    async fn each_stream_goes_on_when_others_have_all_places() {
        let shared = Arc::new(Semaphore::new(10));
        let mut greedy = Ahead::new(stream(100), shared.clone());
        let taken = arrived(&mut greedy).await;
        assert_eq!(taken.len(), 10);
        let mut modest = Ahead::new(stream(3), shared.clone());
        for _ in 0..3 {
            let one = arrived(&mut modest).await;
            assert_eq!(one.len(), 1, "one at a time");
        }
        drop(taken);
        assert_eq!(arrived(&mut greedy).await.len(), 11, "the one that waited, and ten");
    }

    #[tokio::test]
    async fn a_stream_takes_no_more_than_its_places() {
        let shared = Arc::new(Semaphore::new(ALL_MAX));
        let mut ahead = Ahead::new(stream(STREAM_MAX + 10), shared);
        let mut taken = Vec::new();
        while taken.len() < STREAM_MAX {
            taken.push(ahead.next().await.unwrap());
        }
        assert!(arrived(&mut ahead).await.is_empty());
        drop(taken);
        assert_eq!(arrived(&mut ahead).await.len(), 10);
    }

    /// Story: requests were counted, and not their bytes. Watches of keys of 2 MiB, of which a client may send 65,536 before one is
    /// looked at, and without a user, were in memory together.
    #[tokio::test]
    async fn long_requests_take_the_places_of_many() {
        let shared = Arc::new(Semaphore::new(ALL_MAX));
        let long = PutRequest { key: vec![7; 1 << 20], ..PutRequest::default() };
        let (count, most) = (40, STREAM_MAX * PLACE_BYTES);
        let mut ahead = Ahead::new(stream_of(count, &long), shared.clone());
        let mut taken = arrived(&mut ahead).await;
        let bytes: usize = taken.iter().map(|(request, _)| request.encoded_len()).sum();
        assert!((1..=most).contains(&bytes), "{bytes} bytes are in memory, of at most {most}");
        // Each place that becomes free is of use.
        for _ in taken.len()..count {
            taken.clear();
            taken.extend(ahead.next().await);
        }
        drop((taken, ahead));
        while shared.available_permits() < ALL_MAX {
            tokio::task::yield_now().await;
        }
        // A short one has one place.
        let mut ahead = Ahead::new(stream_of(3, &CompactionRequest::default()), Arc::new(Semaphore::new(3)));
        assert_eq!(arrived(&mut ahead).await.len(), 3);
    }

    #[tokio::test]
    async fn a_stream_that_is_dropped_is_read_no_more() {
        let shared = Arc::new(Semaphore::new(ALL_MAX));
        let ahead = Ahead::new(stream(7), shared.clone());
        drop(ahead);
        while shared.available_permits() < ALL_MAX || Arc::strong_count(&shared) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
