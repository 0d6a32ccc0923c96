package controlplane

import (
	"context"
	"net"
	"strings"
)

func (cp *ControlPlane) startControllerManager(ctx context.Context) error {
	return cp.startServer(ctx, "kube-controller-manager", func() (launch, error) {
		address, err := cp.freeAddress()
		if err != nil {
			return launch{}, err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return launch{}, err
		}
		return launch{
			args: []string{
				"--kubeconfig=" + cp.KubeconfigPath,
				// Let it judge who may ask for its health without a request to the API server.
				"--authorization-always-allow-paths=/healthz",
				"--bind-address=" + host,
				"--secure-port=" + port,
				"--leader-elect=false",
				"--controllers=" + cp.controllers(),
				// How soon a node's health shows in its taints.
				"--node-monitor-period=1s",
				"--root-ca-file=" + cp.credentials.servingCertFile,
				"--service-account-private-key-file=" + cp.credentials.accountKeyFile,
				"--profiling=false",
			},
			ready: cp.AnswersOK("https://" + address + "/healthz"),
		}, nil
	})
}

// controllers are all that kube-controller-manager runs by default or, without a node, what matters then. The rest would
// only cost start-up time and memory.
func (cp *ControlPlane) controllers() string {
	if cp.hasNodes() {
		return "*"
	}
	return strings.Join(append([]string{
		"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "serviceaccount-token-controller",
		"root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller",
	}, cp.options.MoreControllers...), ",")
}
