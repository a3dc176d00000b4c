// SPDX-License-Identifier: Apache-2.0
//! The HTTP/1.1 client: connections without Nagle's delay, TLS only where it is spoken, bodies that are not copied.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use penstock_types::Error;

use super::tls;

/// A request body of parts in order.
#[derive(Default)]
pub(crate) struct Parts {
    parts: VecDeque<Bytes>,
    left: u64,
}

impl Parts {
    pub(crate) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Self { left: parts.iter().map(|part| part.len() as u64).sum(), parts }
    }

    /// Bytes still to be sent.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.left -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Idle connections are kept for less than the 20 s after which S3 closes them.
const IDLE: Duration = Duration::from_secs(15);
/// Time for the connection itself to be made.
const CONNECT: Duration = Duration::from_secs(5);

type TlsClient = Client<HttpsConnector<HttpConnector>, Parts>;

/// Clients for both schemes; the one with TLS is made at its first use, as it reads the system's roots.
#[derive(Clone)]
pub(crate) struct Http {
    plain: Client<HttpConnector, Parts>,
    tls: Arc<OnceLock<Result<TlsClient, String>>>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http")
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(Duration::from_secs(60)));
    connector.enforce_http(false);
    connector
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(512);
    builder
}

/// Why no answer came.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The network's reason; the next try may get an answer.
    Network(String),
    /// Why the server's certificate is not trusted; the next try would meet the same.
    Certificate(String),
}

impl SendError {
    /// The error of a request to `place`.
    pub(crate) fn at(self, place: &str) -> Error {
        let place = place.to_owned();
        match self {
            Self::Network(reason) => Error::Unreachable { place, reason },
            Self::Certificate(reason) => Error::Untrusted { place, reason },
        }
    }
}

impl Http {
    pub(crate) fn new() -> Self {
        Self { plain: builder().build(connector()), tls: Arc::default() }
    }

    /// A client that trusts the authorities of `bundle` alone, where one is named. Errs with `Config` where it does not
    /// read.
    pub(crate) fn trusting(bundle: Option<&Path>) -> penstock_types::Result<Self> {
        let http = Self::new();
        if let Some(bundle) = bundle {
            let config = HttpsConnectorBuilder::new().with_tls_config(tls::trusting(bundle)?);
            let client = builder().build(config.https_only().enable_http1().wrap_connector(connector()));
            let _ = http.tls.set(Ok(client));
        }
        Ok(http)
    }

    pub(crate) async fn send(&self, mut request: Request<Parts>) -> Result<Response<Incoming>, SendError> {
        // hyper sends no length for an empty body, and some S3 servers (rclone's) answer 411 to a PUT without it.
        if request.body().left() == 0 && matches!(*request.method(), Method::PUT | Method::POST) {
            request.headers_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
        }
        let answer = if request.uri().scheme() == Some(&http::uri::Scheme::HTTPS) {
            let tls = self.tls.get_or_init(|| {
                let roots = HttpsConnectorBuilder::new().with_native_roots();
                let roots = roots.map_err(|error| format!("no TLS roots on this machine: {error}"))?;
                Ok(builder().build(roots.https_only().enable_http1().wrap_connector(connector())))
            });
            tls.as_ref().map_err(|reason| SendError::Network(reason.clone()))?.request(request).await
        } else {
            self.plain.request(request).await
        };
        answer.map_err(|error| match tls::refusal(&error) {
            Some(reason) => SendError::Certificate(reason),
            None => SendError::Network(innermost(&error)),
        })
    }
}

/// What the innermost cause of an error says; the outer ones speak of the client's own parts.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn empty_put_sends_its_content_length() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/key", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            String::from_utf8(head).unwrap()
        });
        Http::new().send(Request::put(url).body(Parts::default()).unwrap()).await.unwrap();
        assert!(server.await.unwrap().contains("\r\ncontent-length: 0\r\n"));
    }
}
