//! What a client sees over HTTP and WebSocket, on a real socket.

mod detached;
mod requests;
mod server;
mod status;
mod websocket;
