// Creates a Stack, which deploys NGINX from a git repository, and the Secret that it needs.
import * as k8s from "@pulumi/kubernetes";
import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();

const accessToken = new k8s.core.v1.Secret("pulumi-api", {
    metadata: { name: "pulumi-api", namespace: "default" },
    stringData: { accessToken: config.requireSecret("pulumiAccessToken") },
});

const nginx = new k8s.apiextensions.CustomResource("nginx", {
    apiVersion: "pulumi.com/v1",
    kind: "Stack",
    metadata: { name: "nginx", namespace: "default" },
    spec: {
        stack: "acme/k8s-nginx/dev",
        serviceAccountName: "nginx",
        projectRepo: "https://github.com/pulumi/examples",
        repoDir: "kubernetes-ts-nginx",
        commit: "e2e5eb426dbf5b57c50bba0f8eb54fe982ceddb1",
        destroyOnFinalize: true,
        envRefs: {
            PULUMI_ACCESS_TOKEN: {
                type: "Secret",
                secret: { name: accessToken.metadata.name, key: "accessToken" },
            },
        },
    },
});

export const stack = nginx.metadata.name;
