// SPDX-License-Identifier: Apache-2.0
//! HTTP/1.1 client. It sets TCP_NODELAY, uses TLS for https URLs, and does not copy request or response bodies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, PROXY_AUTHORIZATION};
use http::uri::Scheme;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use penstock_types::Error;

use super::proxy::{Connector, Proxies};
use super::tls;

/// Request body that consists of several buffers, which are sent in order.
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

    /// Number of bytes that remain to be sent.
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

/// Maximum idle time of a pooled connection. S3 closes a connection after 20 s, so this time is shorter.
const IDLE: Duration = Duration::from_secs(15);
/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);

type TlsClient = Client<HttpsConnector<Connector>, Parts>;

/// HTTP clients for http and https URLs. The client for https is created at the first use, because creating it reads
/// the root certificates of the system.
#[derive(Clone)]
pub(crate) struct Http {
    plain: Client<Connector, Parts>,
    proxies: Proxies,
    tls: Arc<OnceLock<Result<TlsClient, String>>>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http")
    }
}

fn connector(proxies: Proxies) -> Connector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(Duration::from_secs(60)));
    connector.enforce_http(false);
    Connector { direct: connector, proxies }
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(512);
    builder
}

/// Reason why a request received no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Network error; a retry may succeed.
    Network(String),
    /// The server's certificate is not trusted; a retry would fail in the same way.
    Certificate(String),
    /// The proxy from the environment variables cannot be used.
    Proxy(String),
}

impl SendError {
    /// Converts this reason to the error of a request to `place`.
    pub(crate) fn at(self, place: &str) -> Error {
        let place = place.to_owned();
        match self {
            Self::Network(reason) => Error::Unreachable { place, reason },
            Self::Certificate(reason) => Error::Untrusted { place, reason },
            Self::Proxy(reason) => Error::config("HTTP_PROXY, HTTPS_PROXY or ALL_PROXY", reason),
        }
    }
}

impl Http {
    pub(crate) fn new() -> Self {
        Self::by(Proxies::from_env())
    }

    fn by(proxies: Proxies) -> Self {
        Self { plain: builder().build(connector(proxies.clone())), proxies, tls: Arc::default() }
    }

    /// Creates a client. If `bundle` is given, the client trusts only the certificate authorities in that file. Returns
    /// a `Config` error if the file cannot be read.
    pub(crate) fn trusting(bundle: Option<&Path>) -> penstock_types::Result<Self> {
        Self::new().trust(bundle)
    }

    fn trust(self, bundle: Option<&Path>) -> penstock_types::Result<Self> {
        if let Some(bundle) = bundle {
            let config = HttpsConnectorBuilder::new().with_tls_config(tls::trusting(bundle)?);
            let connector = connector(self.proxies.clone());
            let _ = self.tls.set(Ok(builder().build(config.https_only().enable_http1().wrap_connector(connector))));
        }
        Ok(self)
    }

    pub(crate) async fn send(&self, mut request: Request<Parts>) -> Result<Response<Incoming>, SendError> {
        // hyper sends no Content-Length for an empty body. Some S3 servers (such as rclone's) then return 411 to a PUT.
        if request.body().left() == 0 && matches!(*request.method(), Method::PUT | Method::POST) {
            request.headers_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
        }
        let is_tls = request.uri().scheme() == Some(&Scheme::HTTPS);
        let proxy = self.proxies.of(request.uri());
        if let Some(proxy) = &proxy {
            if proxy.uri().scheme() != Some(&Scheme::HTTP) {
                let problem = format!("{}: only proxies whose URL begins with http:// are supported", proxy.uri());
                return Err(SendError::Proxy(problem));
            }
            if let (false, Some(auth)) = (is_tls, proxy.basic_auth()) {
                request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
            }
        }
        let answer = if is_tls {
            let tls = self.tls.get_or_init(|| {
                let roots = HttpsConnectorBuilder::new().with_native_roots();
                let roots = roots.map_err(|error| format!("this machine has no TLS root certificates: {error}"))?;
                Ok(builder().build(roots.https_only().enable_http1().wrap_connector(connector(self.proxies.clone()))))
            });
            tls.as_ref().map_err(|reason| SendError::Network(reason.clone()))?.request(request).await
        } else {
            self.plain.request(request).await
        };
        let Some(proxy) = proxy.map(|proxy| proxy.uri().clone()) else {
            return answer.map_err(|error| refusal(&error));
        };
        let needs_auth =
            || SendError::Proxy(format!("{proxy} requires a user and a password: http://USER:PASSWORD@HOST:PORT"));
        match answer {
            Ok(answer) if answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(needs_auth()),
            Ok(answer) => Ok(answer),
            Err(error) => Err(match refusal(&error) {
                SendError::Network(reason) if reason.ends_with("proxy authorization required") => needs_auth(),
                SendError::Network(reason) => SendError::Network(format!("{reason} (through the proxy {proxy})")),
                other => other,
            }),
        }
    }
}

fn refusal(error: &(dyn std::error::Error + 'static)) -> SendError {
    match tls::refusal(error) {
        Some(reason) => SendError::Certificate(reason),
        None => SendError::Network(innermost(error)),
    }
}

/// Returns the text of an error's innermost cause. The outer causes only name components of the HTTP client.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;

    use hyper_util::client::proxy::matcher::Matcher;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

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

    /// Starts a proxy that forwards every request to `server` and records the request heads. It requires the
    /// credentials `user:word`.
    async fn proxy(server: SocketAddr) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (url, heads) = (listener.local_addr().unwrap().to_string(), Arc::<Mutex<Vec<String>>>::default());
        let seen = heads.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let head = head_of(&mut client).await;
                    seen.lock().unwrap().push(head.clone());
                    if !head.to_lowercase().contains("\r\nproxy-authorization: basic dxnlcjp3b3jk\r\n") {
                        let answer = b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n";
                        return client.write_all(answer).await.unwrap();
                    }
                    let mut upstream = TcpStream::connect(server).await.unwrap();
                    if head.starts_with("CONNECT ") {
                        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    } else {
                        upstream.write_all(head.as_bytes()).await.unwrap();
                    }
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                });
            }
        });
        (url, heads)
    }

    async fn head_of(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// Responds to one request with 204.
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        head_of(&mut stream).await;
        stream.write_all(b"HTTP/1.1 204 Empty\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
    }

    async fn get(http: &Http, url: &str) -> Result<u16, SendError> {
        Ok(http.send(Request::get(url).body(Parts::default()).unwrap()).await?.status().as_u16())
    }

    #[tokio::test]
    async fn plain_request_reaches_the_proxy_in_absolute_form() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        let (proxy, heads) = proxy(server).await;
        let named = |user: &str| Matcher::builder().http(format!("http://{user}{proxy}")).no("near.example").build();
        let http = Http::by(named("user:word@").into());
        assert_eq!(get(&http, "http://store.example/a%20b?c=1").await.unwrap(), 204);
        let seen = heads.lock().unwrap().pop().unwrap();
        assert!(seen.starts_with("GET http://store.example/a%20b?c=1 HTTP/1.1\r\n"), "{seen}");
        assert!(seen.contains("\r\nhost: store.example\r\n"), "{seen}");

        assert_eq!(get(&http, &format!("http://{server}/")).await.unwrap(), 204, "loopback is direct");
        assert!(heads.lock().unwrap().is_empty());
        assert!(matches!(get(&http, "http://near.example/").await, Err(SendError::Network(_))));
        assert!(heads.lock().unwrap().is_empty(), "NO_PROXY is direct");
        let error = get(&Http::by(named("").into()), "http://store.example/").await.unwrap_err().at("it");
        assert_eq!(error.code(), "config");
        assert!(error.to_string().contains(&format!("http://{proxy}/ requires a user and a password")), "{error}");
        let socks = Matcher::builder().all(format!("socks5://user:word@{proxy}")).build();
        let error = get(&Http::by(socks.into()), "http://store.example/").await.unwrap_err().at("it");
        assert!(!error.retryable() && error.to_string().contains("only proxies"), "{error}");
        assert!(!error.to_string().contains("word"), "no password is shown: {error}");
    }

    #[tokio::test]
    async fn tls_request_goes_through_a_tunnel_and_the_server_is_still_verified() {
        let key = rcgen::generate_simple_self_signed(["store.example".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("ca.pem");
        std::fs::write(&bundle, key.cert.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![key.cert.der().clone()],
                PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream).await;
                    }
                });
            }
        });
        let (proxy, heads) = proxy(server).await;
        let named = |user: &str| Matcher::builder().https(format!("http://{user}{proxy}")).build();
        let http = Http::by(named("user:word@").into()).trust(Some(&bundle)).unwrap();
        assert_eq!(get(&http, "https://store.example/a").await.unwrap(), 204);
        let seen = heads.lock().unwrap().pop().unwrap();
        assert!(seen.starts_with("CONNECT store.example:443 HTTP/1.1\r\n"), "{seen}");
        assert!(matches!(get(&http, "https://other.example/").await, Err(SendError::Certificate(_))));

        let refused = Http::by(named("").into()).trust(Some(&bundle)).unwrap();
        assert!(matches!(get(&refused, "https://store.example/a").await, Err(SendError::Proxy(_))));
        let gone = Matcher::builder().https("http://127.0.0.1:1").build();
        let error =
            get(&Http::by(gone.into()).trust(Some(&bundle)).unwrap(), "https://store.example/").await.unwrap_err();
        let error = error.at("it");
        assert!(error.retryable() && error.to_string().contains("(through the proxy http://127.0.0.1:1/)"), "{error}");
    }
}
