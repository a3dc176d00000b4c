// SPDX-License-Identifier: Apache-2.0
//! Throttle layer in front of the bucket. Counts, rejects and delays requests according to the tier's limits, and
//! limits the byte rate of bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request as HttpRequest, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use penstock_types::Timer;
use s3s::service::S3Service;
use s3s::{Body, HttpError};
use serde::Serialize;
use tokio::time::Instant;

use crate::key_path::decoded;
use crate::limits::{Connection, Limits, Refusal, Request, Route};
use crate::signing::{add_amz_date, has_bad_expiry, unsigned_header};
use crate::throttled_body::Shaped;
use crate::tier::Kind;

/// Maximum number of body bytes that the endpoint reads from a rejected upload. If it read none, the client would see a
/// connection reset instead of the response.
const DRAINED: u64 = 64 << 20;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// Counters of the endpoint since its start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct Stats { $($(#[doc = $doc])* pub $name: u64),+ }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Arc<AtomicU64>),+ }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }

        impl Stats {
            /// Returns all counters with their names.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    };
}

counters! {
    /// Number of requests of any kind, including rejected requests.
    requests,
    /// Number of GET requests for objects.
    gets,
    /// Number of LIST requests; each one returns a page.
    lists,
    /// Number of HEAD requests.
    heads,
    /// Number of PUT and POST requests.
    puts,
    /// Number of DELETE requests.
    deletes,
    /// Number of requests rejected with 503, for any reason.
    throttles,
    /// Number of requests rejected with 503 because of too many requests.
    throttles_requests,
    /// Number of requests rejected with 503 because of too many queued bytes.
    throttles_bytes,
    /// Number of responses with status 401 or 403.
    denied,
    /// Number of responses with status 500 or above, except throttled requests.
    errors,
    /// Number of body bytes sent.
    bytes_out,
    /// Number of body bytes received.
    bytes_in,
    /// Number of accepted connections.
    connections,
    /// Number of requests that the tier's latency delayed.
    delayed,
    /// Sum of the latencies drawn for the delayed requests, in microseconds.
    delay_drawn_us,
    /// Sum of the actual delays of these requests, in microseconds. The difference from `delay_drawn_us` is overhead of
    /// the endpoint, not of its clients.
    delay_actual_us,
}

/// The throttle layer.
pub(crate) struct ThrottleLayer {
    pub(crate) service: S3Service,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) timer: Timer,
}

/// Properties of a request, parsed from its request line.
struct Asked {
    kind: Kind,
    prefix: String,
}

fn asked(request: &HttpRequest<Incoming>) -> (Asked, bool) {
    let kind = if matches!(*request.method(), Method::GET | Method::HEAD) { Kind::Read } else { Kind::Write };
    let path = request.uri().path().trim_start_matches('/');
    let (_, key) = path.split_once('/').unwrap_or((path, ""));
    let is_list = key.is_empty() && *request.method() == Method::GET;
    let key = if is_list {
        let query = request.uri().query().unwrap_or("");
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
        prefix.map(|text| decoded(&text.replace('+', " "))).unwrap_or_default()
    } else {
        decoded(key)
    };
    let end = key.rfind('/').map_or(0, |at| at + 1);
    (Asked { kind, prefix: key[..end].to_owned() }, is_list)
}

fn is_attributes<B>(request: &HttpRequest<B>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|name| matches!(name, "attributes" | "attributes=")))
}

/// Applies `change` to the body text of a short response.
async fn rewrite(response: Response<Body>, change: impl FnOnce(&str) -> String) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(change(&String::from_utf8_lossy(&bytes))))
}

fn awaits_continue<B>(request: &HttpRequest<B>) -> bool {
    request.headers().contains_key(header::EXPECT)
}

/// Closes the connection after this response. A client that waits for `100 Continue` may receive a final response
/// instead. botocore then takes the next response on the connection for a part of this one, and waits for ever.
fn close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

impl ThrottleLayer {
    fn add(counter: &Arc<AtomicU64>) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the time `from` plus `latency`, and counts the delay.
    async fn delay(&self, from: Instant, latency: Duration) {
        self.timer.until((from + latency).into_std()).await;
        let counters = &self.counters;
        Self::add(&counters.delayed);
        counters.delay_drawn_us.fetch_add(latency.as_micros() as u64, Ordering::Relaxed);
        counters.delay_actual_us.fetch_add(from.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    fn count(&self, method: &Method, is_list: bool) {
        let counters = &self.counters;
        Self::add(&counters.requests);
        match *method {
            Method::GET if is_list => Self::add(&counters.lists),
            Method::GET => Self::add(&counters.gets),
            Method::HEAD => Self::add(&counters.heads),
            Method::DELETE => Self::add(&counters.deletes),
            _ => Self::add(&counters.puts),
        }
    }

    /// Handles one request.
    pub(crate) async fn answer(
        &self,
        mut request: HttpRequest<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Shaped<Body>>, HttpError> {
        let began = Instant::now();
        let (asked, is_list) = asked(&request);
        self.count(request.method(), is_list);
        if let Some(name) = unsigned_header(&request) {
            Self::add(&self.counters.denied);
            let text = format!(
                "<Code>AccessDenied</Code><Message>There were headers present in the request which were not signed</Message>\
                 <HeadersNotSigned>{name}</HeadersNotSigned>"
            );
            return Ok(self.error(request, StatusCode::FORBIDDEN, &text).await);
        }
        if has_bad_expiry(&request) {
            Self::add(&self.counters.denied);
            let text = "<Code>AccessDenied</Code><Message>X-Amz-Expires must be 0 to 604800 seconds</Message>";
            return Ok(self.error(request, StatusCode::FORBIDDEN, text).await);
        }
        add_amz_date(&mut request);
        let what = Request { kind: asked.kind, prefix: &asked.prefix };
        if let Err(refusal) = self.limits.admit(what, began) {
            return Ok(self.refuse(request, refusal).await);
        }
        let route = self.limits.route(what, connection);
        let (read, written) = match asked.kind {
            Kind::Read => (route, Route::default()),
            Kind::Write => (Route::default(), route),
        };
        let bytes_in = self.counters.bytes_in.clone();
        let request = if asked.kind == Kind::Write {
            request.map(|body| Body::http_body_unsync(Shaped::new(body, written, bytes_in)))
        } else {
            request.map(Body::from)
        };
        let awaits = awaits_continue(&request);
        let is_empty = request.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
        let is_attributes = is_attributes(&request);
        let mut response = self.service.call(request).await?;
        if is_attributes && response.status().is_success() {
            // S3 writes the ETag in this response without quotes, but `s3s` writes quotes.
            let change = |text: &str| text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>");
            response = rewrite(response, change).await;
        }
        let id = format!("{:016X}", rand::random::<u64>());
        if response.status().is_client_error() || response.status().is_server_error() {
            let change = |text: &str| text.replace("</Error>", &format!("<RequestId>{id}</RequestId></Error>"));
            response = rewrite(response, change).await;
        }
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert("x-amz-request-id", id);
        }
        if awaits && (is_empty || !response.status().is_success()) {
            close(&mut response);
        }
        // For reads, the latency includes the endpoint's own processing time. For writes, the latency starts when the
        // body has arrived.
        let latency = self.limits.latency(asked.kind);
        if !latency.is_zero() {
            self.delay(if asked.kind == Kind::Read { began } else { Instant::now() }, latency).await;
        }
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::add(&self.counters.denied),
            status if status.is_server_error() => Self::add(&self.counters.errors),
            _ => {}
        }
        Ok(response.map(|body| Shaped::new(body, read, self.counters.bytes_out.clone())))
    }

    async fn refuse(&self, request: HttpRequest<Incoming>, refusal: Refusal) -> Response<Shaped<Body>> {
        Self::add(&self.counters.throttles);
        Self::add(match refusal {
            Refusal::Requests => &self.counters.throttles_requests,
            Refusal::Bytes => &self.counters.throttles_bytes,
        });
        let throttle = &self.limits.tier().throttle;
        let message = throttle.message.replace('&', "&amp;").replace('<', "&lt;");
        let text = format!("<Code>SlowDown</Code><Message>{message}</Message>");
        let mut response = self.error(request, StatusCode::SERVICE_UNAVAILABLE, &text).await;
        if let Some(seconds) = throttle.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Builds an error response without calling the bucket. `text` contains the child elements of `<Error>`.
    async fn error(&self, request: HttpRequest<Incoming>, status: StatusCode, text: &str) -> Response<Shaped<Body>> {
        let is_head = *request.method() == Method::HEAD;
        let awaits = awaits_continue(&request);
        // A client that waits for `100 Continue` has not sent its body. Reading the body would send `100 Continue`, so
        // do not read it.
        if !awaits {
            let mut body = request.into_body();
            let mut seen = 0;
            while let Some(Ok(frame)) = body.frame().await {
                seen += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
                if seen > DRAINED {
                    break;
                }
            }
        }
        let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>{text}</Error>");
        let body = if is_head { Body::empty() } else { Body::from(Bytes::from(text)) };
        let mut response = Response::new(Shaped::new(body, Route::default(), self.counters.bytes_out.clone()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if awaits {
            close(&mut response);
        }
        response
    }
}
