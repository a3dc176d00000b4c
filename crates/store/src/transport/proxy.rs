// SPDX-License-Identifier: Apache-2.0
//! Forward proxies from `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, with the same rules as in curl. Plain
//! HTTP requests are sent to the proxy in absolute form. TLS uses a tunnel (CONNECT). Requests to this machine and to
//! the metadata addresses of clouds never use a proxy, because the proxy would see the metadata tokens.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::{is_loopback, is_metadata};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Chooses the proxy for a request.
#[derive(Clone)]
pub(super) struct Proxies(Arc<Matcher>);

impl Proxies {
    pub(super) fn from_env() -> Self {
        Self(Arc::new(Matcher::from_env()))
    }

    /// Returns the proxy for `target`. Returns `None` for a direct connection.
    pub(super) fn of(&self, target: &Uri) -> Option<Intercept> {
        let host = target.host()?;
        if is_loopback(host) || is_metadata(host) { None } else { self.0.intercept(target) }
    }
}

#[cfg(test)]
impl From<Matcher> for Proxies {
    fn from(matcher: Matcher) -> Self {
        Self(Arc::new(matcher))
    }
}

/// Connects to a server, directly or through a proxy.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) direct: HttpConnector,
    pub(super) proxies: Proxies,
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.of(&target) else {
            let connecting = self.direct.call(target);
            return Box::pin(async move { Ok(Stream { socket: connecting.await?, speaks_to_proxy: false }) });
        };
        if target.scheme() != Some(&Scheme::HTTPS) {
            let connecting = self.direct.call(proxy.uri().clone());
            return Box::pin(async move { Ok(Stream { socket: connecting.await?, speaks_to_proxy: true }) });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        let connecting = tunnel.call(target);
        Box::pin(async move { Ok(Stream { socket: connecting.await?, speaks_to_proxy: false }) })
    }
}

/// A connection to a server or to a proxy. On a connection to a proxy, hyper sends requests in absolute form.
pub(super) struct Stream {
    socket: TokioIo<TcpStream>,
    speaks_to_proxy: bool,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.inner().fmt(f)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.socket.connected().proxy(self.speaks_to_proxy)
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, from)
    }
}
