//! What a request has to be before it is read, and which kind of answer its client takes.

use ::axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use async_graphql::http::WebSocketProtocols;

/// The newer media type: the status of a response tells what became of the request.
const GRAPHQL_RESPONSE: &str = "application/graphql-response+json";
/// The older one: the status of a response that could be made is 200.
const JSON: &str = "application/json";

/// The methods that are taken.
pub(super) const METHODS: &str = "GET, HEAD, POST";

/// Headers that a browser sends to another site only after it has asked whether it may.
const PREFLIGHT: [&str; 2] = ["graphql-require-preflight", "apollo-require-preflight"];

/// Why a request is not read, whatever is in it. `preflight`: whether a form needs a header that no form can send.
pub(super) fn refusal(method: &Method, headers: &HeaderMap, preflight: bool) -> Option<(StatusCode, &'static str)> {
    match *method {
        Method::GET | Method::HEAD => None,
        Method::POST => match essence(headers).as_deref() {
            Some(json) if json == JSON || json.ends_with("+json") => None,
            Some("multipart/form-data") if !preflight || PREFLIGHT.iter().any(|name| headers.contains_key(*name)) => {
                None
            }
            Some("multipart/form-data") => Some((
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "A multipart request needs the header GraphQL-Require-Preflight, which no form of another site can send.",
            )),
            _ => Some((
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "A request's content type is application/json, or multipart/form-data.",
            )),
        },
        _ => Some((StatusCode::METHOD_NOT_ALLOWED, "A request is sent with POST, and a query with GET too.")),
    }
}

/// The content type without its parameters, in lower case.
fn essence(headers: &HeaderMap) -> Option<String> {
    let content_type = text(headers, header::CONTENT_TYPE)?;
    Some(content_type.split(';').next()?.trim().to_ascii_lowercase())
}

/// Whether the client wants the older kind of answer. `*/*`, or no word about it, gets the newer one.
pub(super) fn prefers_json(headers: &HeaderMap) -> bool {
    let accept = text(headers, header::ACCEPT).unwrap_or("*/*").to_ascii_lowercase();
    let (new, old) = (quality(&accept, GRAPHQL_RESPONSE), quality(&accept, JSON));
    new == 0 || old > new
}

/// How much a media type is wanted, in thousandths: by the most specific range that covers it.
fn quality(accept: &str, media_type: &str) -> u16 {
    let ranges = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let specific = match parts.next()? {
            range if range == media_type => 2,
            "application/*" => 1,
            "*/*" => 0,
            _ => return None,
        };
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q="));
        Some((specific, weight.map_or(1_000, thousandths)))
    });
    ranges.max_by_key(|(specific, _)| *specific).map_or(0, |(_, quality)| quality)
}

/// A weight from 0 to 1; one that can't be read is 1.
fn thousandths(weight: &str) -> u16 {
    let weight = weight.parse::<f32>().ok().filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(1.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
    let thousandths = (weight * 1_000.0).round() as u16;
    thousandths
}

/// The sub-protocol of a WebSocket: the first that the client offers and the server speaks.
pub(super) fn protocol(headers: &HeaderMap) -> Option<WebSocketProtocols> {
    let offered = text(headers, header::SEC_WEBSOCKET_PROTOCOL)?;
    offered.split(',').find_map(|name| name.trim().parse().ok())
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn an_accept_header_is_read_with_its_weights_and_without_regard_to_case() {
        for (accept, is_json) in [
            ("*/*", false),
            ("application/*", false),
            ("application/json", true),
            ("Application/JSON", true),
            ("application/json, */*;q=0.1", true),
            ("application/graphql-response+json;q=0", true),
            ("application/graphql-response+json;q=0, */*", true),
            ("application/graphql-response+json, application/json;q=0.9", false),
            ("application/graphql-response+json;q=0.5,application/json;q=0.9", true),
            ("application/json;q=0.2, application/*;q=0.8", false),
            ("application/graphql-response+json; charset=utf-8", false),
            ("text/html", true),
        ] {
            assert_eq!(prefers_json(&headers(header::ACCEPT, accept)), is_json, "{accept}");
        }
        assert!(!prefers_json(&HeaderMap::new()));
    }

    #[test]
    fn the_first_known_protocol_is_spoken() {
        for (offered, spoken) in [
            ("graphql-transport-ws", Some("graphql-transport-ws")),
            ("graphql-ws, graphql-transport-ws", Some("graphql-ws")),
            ("soap,graphql-transport-ws , graphql-ws", Some("graphql-transport-ws")),
            ("soap", None),
        ] {
            let known = protocol(&headers(header::SEC_WEBSOCKET_PROTOCOL, offered));
            assert_eq!(known.map(|protocol| protocol.sec_websocket_protocol()), spoken, "{offered}");
        }
    }
}
