//! The axum service: who the client is, requests that outlive their connection, statuses and headers.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::axum::{
    RequestExt,
    body::{Body, HttpBody},
    extract::{FromRequest, FromRequestParts, WebSocketUpgrade},
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response as HttpResponse},
};
use async_graphql::{
    BatchResponse, Data, Executor, ParseRequestError, PathSegment, Response, ServerError, Value,
    http::{create_multipart_mixed_stream, is_accept_multipart_mixed},
};
use async_graphql_axum::{
    GraphQLBatchRequest, GraphQLProtocol, GraphQLResponse, GraphQLWebSocket, rejection::GraphQLRejection,
};
use futures_util::StreamExt;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use crate::key::ClientId;

mod detached;
pub mod identity;
mod negotiation;
mod socket;

use detached::{Detached, is_mutation};
use negotiation::{METHODS, prefers_json, protocol as protocol_of, refusal};
use socket::Socket;

/// A drop-in for `async_graphql_axum::GraphQL`, for `route_service`: requests, batches, multipart uploads, and
/// WebSockets (`graphql-transport-ws`) on one route.
///
/// 1. The client's identity comes from a function of the request's head; see [`identity`].
/// 2. A request runs in a task of its own: a client that hangs up, or a timeout layer, ends the wait and not the
///    mutation. [`GraphQLIdempotency::shutdown`] waits for those that run.
/// 3. A mutation over GET is refused with 405, as is every method but GET, HEAD and POST. A POST is JSON or multipart, else
///    it gets 415; multipart needs a header that a form on another site can't send, see
///    [`GraphQLIdempotency::without_preflight`].
/// 4. The status follows GraphQL over HTTP: with `application/graphql-response+json` and no data it is the error's
///    `httpStatus`; a client that prefers `application/json` gets 200. `*/*`, or no `Accept`, gets the first.
/// 5. A request is as long as axum's `DefaultBodyLimit` allows (2 MB, unless a layer says otherwise); a longer one gets
///    413.
/// 6. `Retry-After` is `retryAfterMs` in whole seconds; `Idempotent-Replayed: true` says that every protected field of
///    the response (of all responses of a batch) was a replay.
pub struct GraphQLIdempotency<E> {
    executor: Detached<E>,
    identity: Arc<Identity>,
    init_identity: Arc<InitIdentity>,
    data: Arc<AddData>,
    preflight: bool,
    /// The WebSockets, and what ends them.
    sockets: TaskTracker,
    closing: CancellationToken,
}

type Identity = dyn Fn(&Parts) -> Option<ClientId> + Send + Sync;
type InitIdentity = dyn Fn(&serde_json::Value) -> Option<ClientId> + Send + Sync;
type AddData = dyn Fn(&Parts, &mut Data) + Send + Sync;

impl<E: Executor> Clone for GraphQLIdempotency<E> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            identity: Arc::clone(&self.identity),
            init_identity: Arc::clone(&self.init_identity),
            data: Arc::clone(&self.data),
            preflight: self.preflight,
            sockets: self.sockets.clone(),
            closing: self.closing.clone(),
        }
    }
}

impl<E: Executor> GraphQLIdempotency<E> {
    /// A service over a schema that has the [`Idempotency`](crate::graphql::Idempotency) extension.
    pub fn new(schema: E, identity: impl Fn(&Parts) -> Option<ClientId> + Send + Sync + 'static) -> Self {
        Self {
            executor: Detached::new(schema),
            identity: Arc::new(identity),
            init_identity: Arc::new(|_| None),
            data: Arc::new(|_, _| {}),
            preflight: true,
            sockets: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    /// The identity of a WebSocket's client by its `connection_init` payload, where the upgrade request has none:
    /// browsers can't set the headers of that request.
    #[must_use]
    pub fn connection_init(
        mut self,
        identity: impl Fn(&serde_json::Value) -> Option<ClientId> + Send + Sync + 'static,
    ) -> Self {
        self.init_identity = Arc::new(identity);
        self
    }

    /// Adds what the application's resolvers and guards expect in a request's data (the user, say).
    #[must_use]
    pub fn data(mut self, add: impl Fn(&Parts, &mut Data) + Send + Sync + 'static) -> Self {
        self.data = Arc::new(add);
        self
    }

    /// Takes multipart requests without the header `GraphQL-Require-Preflight` (or Apollo's). A form on any other site can
    /// send those with the user's cookies: only for a service that knows its clients by something else.
    #[must_use]
    pub fn without_preflight(mut self) -> Self {
        self.preflight = false;
        self
    }

    /// Waits for the requests that run, up to a deadline, and closes the WebSockets. Call it after the server has stopped
    /// taking new requests. What runs for longer is dropped: a leased key is held, what a transaction did is rolled back. A
    /// WebSocket takes nothing new from now on; what runs over it is answered, and then it is closed with 1001. Whether
    /// everything ended by itself.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        self.closing.cancel();
        let in_time = self.executor.end(deadline).await;
        self.sockets.close();
        // Elapsed where a client does not read its answers.
        let _ = timeout(FAREWELL, self.sockets.wait()).await;
        in_time
    }

    async fn serve(self, request: Request<Body>) -> HttpResponse {
        let (mut parts, body) = request.into_parts();
        if is_upgrade(&parts.headers) {
            return self.upgrade(&mut parts).await;
        }
        let is_json = prefers_json(&parts.headers);
        if let Some((status, message)) = refusal(&parts.method, &parts.headers, self.preflight) {
            return match status {
                StatusCode::METHOD_NOT_ALLOWED => not_allowed(message, METHODS, is_json),
                status => refuse(status, message, is_json),
            };
        }
        if parts.method == Method::HEAD {
            // The same without a body, which the server leaves out.
            parts.method = Method::GET;
        }
        let request = Request::from_parts(parts.clone(), body).with_limited_body();
        let mut batch = match GraphQLBatchRequest::<GraphQLRejection>::from_request(request, &()).await {
            Ok(batch) => batch.into_inner(),
            Err(rejection) => return refuse_unread(&rejection.0, is_json),
        };
        if parts.method == Method::GET && batch.iter_mut().any(is_mutation) {
            return not_allowed("A mutation is not taken over GET: send it with POST.", "POST", is_json);
        }
        batch.iter_mut().for_each(|request| self.add_data(&parts, &mut request.data));
        let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        if is_accept_multipart_mixed(accept.unwrap_or_default()) {
            let request = match batch.into_single() {
                Ok(request) => request,
                Err(error) => return refuse_unread(&error, is_json),
            };
            let stream = self.executor.execute_stream(request, None);
            let parts = create_multipart_mixed_stream(stream, HEARTBEAT).map(Ok::<_, Infallible>);
            let body = Body::from_stream(parts);
            return ([(header::CONTENT_TYPE, "multipart/mixed; boundary=graphql")], body).into_response();
        }
        respond(self.executor.execute_batch(batch).await, is_json)
    }

    fn add_data(&self, parts: &Parts, data: &mut Data) {
        (self.data)(parts, data);
        if let Some(client) = (self.identity)(parts) {
            data.insert(client);
        }
    }

    async fn upgrade(self, parts: &mut Parts) -> HttpResponse {
        let mut data = Data::default();
        self.add_data(parts, &mut data);
        let protocol = match GraphQLProtocol::from_request_parts(parts, &()).await {
            Ok(protocol) => protocol,
            Err(status) => return status.into_response(),
        };
        let spoken = protocol_of(&parts.headers).map(|protocol| protocol.sec_websocket_protocol());
        let upgrade = match WebSocketUpgrade::from_request_parts(parts, &()).await {
            Ok(upgrade) => upgrade,
            Err(rejection) => return rejection.into_response(),
        };
        let is_known = data.contains_key(&std::any::TypeId::of::<ClientId>());
        let (drained, sockets) = (self.executor.drained(), self.sockets.clone());
        upgrade.protocols(spoken).on_upgrade(async move |socket| {
            let init_identity = self.init_identity;
            let (socket, answers, incoming) = Socket::of(socket, self.closing);
            let session = GraphQLWebSocket::new_with_pair(answers, incoming, self.executor, protocol)
                .with_data(data)
                .on_connection_init(async move |payload| {
                    let mut data = Data::default();
                    if let (false, Some(client)) = (is_known, init_identity(&payload)) {
                        data.insert(client);
                    }
                    Ok(data)
                })
                .serve();
            sockets.track_future(socket.run(session, drained)).await;
        })
    }
}

impl<B, E> Service<Request<B>> for GraphQLIdempotency<E>
where
    B: HttpBody<Data = ::axum::body::Bytes> + Send + 'static,
    B::Error: Into<::axum::BoxError>,
    E: Executor,
{
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.serve(request.map(Body::new)).await) })
    }
}

/// How long the WebSockets have to send what is left.
const FAREWELL: Duration = Duration::from_secs(1);

/// How often a `multipart/mixed` response sends a heartbeat; async-graphql's own default.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// The answer to a request that can't be read.
fn refuse_unread(error: &ParseRequestError, is_json: bool) -> HttpResponse {
    // The error of axum's limit arrives as an I/O error of async-graphql's reader.
    let is_too_large = matches!(error, ParseRequestError::PayloadTooLarge)
        || matches!(error, ParseRequestError::Io(error) if error.to_string().contains("length limit exceeded"));
    if is_too_large {
        refuse(StatusCode::PAYLOAD_TOO_LARGE, "The request is longer than this server allows.", is_json)
    } else {
        refuse(StatusCode::BAD_REQUEST, format!("The request can't be read: {error}"), is_json)
    }
}

/// The answer to a method that is not taken, with those that are.
fn not_allowed(message: &str, allowed: &'static str, is_json: bool) -> HttpResponse {
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, message, is_json);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The answer to a request that is not executed.
fn refuse(status: StatusCode, message: impl Into<String>, is_json: bool) -> HttpResponse {
    let mut response = respond(Response::from_errors(vec![ServerError::new(message, None)]).into(), is_json);
    *response.status_mut() = status;
    response
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// `is_json`: by the rules of `application/json`.
fn respond(batch: BatchResponse, is_json: bool) -> HttpResponse {
    let responses: &[Response] = match &batch {
        BatchResponse::Single(response) => std::slice::from_ref(response),
        BatchResponse::Batch(responses) => responses,
    };
    let status = match &batch {
        BatchResponse::Single(response) if !is_json => status(response),
        BatchResponse::Single(_) | BatchResponse::Batch(_) => StatusCode::OK,
    };
    let replayed = !responses.is_empty() && responses.iter().all(is_replayed);
    let errors = responses.iter().flat_map(|response| &response.errors);
    let retry_after = errors.filter_map(|error| number(error, "retryAfterMs")).max();
    let mut response = GraphQLResponse(batch).into_response();
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if is_json {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(milliseconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(milliseconds.div_ceil(1_000)));
    }
    if replayed {
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// The status of a response that has no data; 200 where there is any.
fn status(response: &Response) -> StatusCode {
    if response.data != Value::Null || response.errors.is_empty() {
        return StatusCode::OK;
    }
    let told = response.errors.iter().find_map(|error| number(error, "httpStatus"));
    let told = told.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
    told.unwrap_or_else(|| {
        // An error without a path is about the request itself.
        let is_request_error =
            response.errors.iter().all(|error| !matches!(error.path.first(), Some(PathSegment::Field(_))));
        if is_request_error { StatusCode::BAD_REQUEST } else { StatusCode::OK }
    })
}

fn number(error: &ServerError, extension: &str) -> Option<u64> {
    match error.extensions.as_ref()?.get(extension)? {
        Value::Number(number) => number.as_u64(),
        _ => None,
    }
}

/// Whether every protected field of a response was a replay.
fn is_replayed(response: &Response) -> bool {
    let Some(Value::Object(marks)) = response.extensions.get("idempotency") else {
        return false;
    };
    !marks.is_empty()
        && marks
            .values()
            .all(|mark| matches!(mark, Value::Object(mark) if mark.get("replayed") == Some(&Value::Boolean(true))))
}
