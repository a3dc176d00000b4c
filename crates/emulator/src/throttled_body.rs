// SPDX-License-Identifier: Apache-2.0
//! Body wrapper that limits the byte rate and counts the bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::Route;

/// A body whose byte rate the limiters of `route` limit.
pub(crate) struct Shaped<B> {
    inner: B,
    route: Route,
    slice: u64,
    /// Bytes that were read from the inner body but have no reservation yet.
    rest: Bytes,
    /// Timer and the bytes to pass on when it fires.
    waiting: Option<(Pin<Box<Sleep>>, Bytes)>,
    passed: Arc<AtomicU64>,
}

impl<B> Shaped<B> {
    pub(crate) fn new(inner: B, route: Route, passed: Arc<AtomicU64>) -> Self {
        let slice = route.slice();
        Self { inner, route, slice, rest: Bytes::new(), waiting: None, passed }
    }

    fn held(&self) -> u64 {
        self.rest.len() as u64 + self.waiting.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Shaped<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some((timer, bytes)) = &mut this.waiting {
                ready!(timer.as_mut().poll(cx));
                let bytes = std::mem::take(bytes);
                this.waiting = None;
                this.passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.rest.is_empty() {
                match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(bytes) if this.route.is_open() => {
                            this.passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                            return Poll::Ready(Some(Ok(Frame::data(bytes))));
                        }
                        Ok(bytes) => this.rest = bytes,
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                    end => return Poll::Ready(end),
                }
            }
            if !this.rest.is_empty() {
                let len = this.slice.min(this.rest.len() as u64) as usize;
                let bytes = this.rest.slice(..len);
                this.rest.advance(len);
                let at = this.route.reserve(Instant::now(), len as u64);
                this.waiting = Some((Box::pin(sleep_until(at)), bytes));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held() == 0 && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), self.held());
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}
