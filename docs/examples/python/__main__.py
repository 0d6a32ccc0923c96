"""Creates a Stack, which deploys NGINX from a git repository, and the Secret that it needs."""

import pulumi
import pulumi_kubernetes as k8s

config = pulumi.Config()

access_token = k8s.core.v1.Secret(
    "pulumi-api",
    metadata={"name": "pulumi-api", "namespace": "default"},
    string_data={"accessToken": config.require_secret("pulumiAccessToken")},
)

nginx = k8s.apiextensions.CustomResource(
    "nginx",
    api_version="pulumi.com/v1",
    kind="Stack",
    metadata={"name": "nginx", "namespace": "default"},
    spec={
        "stack": "acme/k8s-nginx/dev",
        "serviceAccountName": "nginx",
        "projectRepo": "https://github.com/pulumi/examples",
        "repoDir": "kubernetes-ts-nginx",
        "commit": "e2e5eb426dbf5b57c50bba0f8eb54fe982ceddb1",
        "destroyOnFinalize": True,
        "envRefs": {
            "PULUMI_ACCESS_TOKEN": {
                "type": "Secret",
                "secret": {"name": access_token.metadata["name"], "key": "accessToken"},
            },
        },
    },
)

pulumi.export("stack", nginx.metadata["name"])
