import * as k8s from "@pulumi/kubernetes";
import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();
const labels = { app: "nginx" };

const deployment = new k8s.apps.v1.Deployment("nginx", {
    spec: {
        selector: { matchLabels: labels },
        replicas: config.getNumber("replicas") ?? 1,
        template: {
            metadata: { labels },
            spec: {
                securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: "RuntimeDefault" } },
                terminationGracePeriodSeconds: 1,
                containers: [{
                    name: "nginx",
                    image: config.require("image"),
                    imagePullPolicy: "IfNotPresent",
                    command: ["sleep", "3600"],
                    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ["ALL"] } },
                }],
            },
        },
    },
});

export const name = deployment.metadata.name;
