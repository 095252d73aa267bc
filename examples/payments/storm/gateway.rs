//! A gateway for one side of the storm, served over HTTP in this process.

use std::path::Path;

use tokio::task::JoinHandle;

use crate::{
    gateway::{self, Gateway},
    gateway_client::GatewayClient,
    listen,
    report::Report,
};

pub(super) struct StormGateway {
    client: GatewayClient,
    served: JoinHandle<std::io::Result<()>>,
}

impl StormGateway {
    pub(super) async fn start(database: &Path) -> Result<Self, Report> {
        let gateway = Gateway::open(&format!("sqlite:{}", database.display())).await?;
        let listener = listen::bind("127.0.0.1:0").await?;
        let client = GatewayClient::new(&format!("http://{}", listener.local_addr()?))?;
        let served = tokio::spawn(gateway::serve(listener, gateway, std::future::pending()));
        Ok(Self { client, served })
    }

    pub(super) fn client(&self) -> &GatewayClient {
        &self.client
    }
}

impl Drop for StormGateway {
    fn drop(&mut self) {
        self.served.abort();
    }
}
