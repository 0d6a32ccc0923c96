package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// issuer identifies the cluster in the ServiceAccount tokens that it signs.
const issuer = "https://kubernetes.default.svc.cluster.local"

const (
	// ServiceRange holds the addresses of services. It is part of a range for benchmarks, which no network uses.
	ServiceRange = "198.18.0.0/24"
	// serviceAddress is the address of the service "kubernetes", the first of the range.
	serviceAddress = "198.18.0.1"
)

// serviceNames returns the host names by which pods call the API server.
func serviceNames() []string {
	return []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
}

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cp.credentials.servingCA)
	err := cp.startServer(ctx, "kube-apiserver", func() (launch, error) {
		address, err := cp.freeAddress()
		if err != nil {
			return launch{}, err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return launch{}, err
		}
		cp.config = &rest.Config{
			Host:        "https://" + address,
			BearerToken: cp.credentials.tokens[administrator],
			CAData:      cp.credentials.servingCA,
			QPS:         -1, // the server's own flow control is enough
		}
		// A loopback address cannot be an endpoint of the service "kubernetes".
		endpoints := "none"
		var kubelets []string
		if cp.hasNodes() {
			endpoints = "lease"
			cp.config.Dial = cp.Dial
			if kubelets, err = cp.kubeletClientArgs(); err != nil {
				return launch{}, err
			}
		}
		return launch{
			// Most of its time goes into its start. With fewer collections of garbage, that takes a seventh less, and 250 MB more. With ten
			// thousand Stacks it would take 17 GB.
			env: []string{"GOGC=400", "GOMEMLIMIT=6GiB"},
			args: append(kubelets,
				"--etcd-servers=unix://"+cp.etcdSocket(),
				"--bind-address="+host,
				"--advertise-address="+host,
				"--secure-port="+port,
				"--endpoint-reconciler-type="+endpoints,
				"--tls-cert-file="+cp.credentials.servingCertFile,
				"--tls-private-key-file="+cp.credentials.servingKeyFile,
				"--token-auth-file="+cp.credentials.tokenFile,
				"--authorization-mode=Node,RBAC",
				"--enable-admission-plugins="+strings.Join(append([]string{"NodeRestriction"}, cp.options.AdmissionPlugins...), ","),
				"--service-account-issuer="+issuer,
				"--service-account-key-file="+cp.credentials.accountKeyFile,
				"--service-account-signing-key-file="+cp.credentials.accountKeyFile,
				"--service-cluster-ip-range="+ServiceRange,
				"--allow-privileged=true",
				"--profiling="+strconv.FormatBool(cp.options.Profiling),
			),
			ready: cp.answersOK(cp.config.Host+"/readyz", cp.config.BearerToken, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}),
		}, nil
	})
	if err != nil {
		return err
	}
	cp.KubeconfigPath, err = cp.WriteKubeconfig("admin", cp.config)
	return err
}

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
				// This lets it answer requests for its health without asking the API server for authorization.
				"--authorization-always-allow-paths=/healthz",
				"--bind-address=" + host,
				"--secure-port=" + port,
				"--leader-elect=false",
				"--controllers=" + cp.controllers(),
				// This is how soon a change of a node's health shows in its taints.
				"--node-monitor-period=1s",
				"--root-ca-file=" + cp.credentials.servingCertFile,
				"--service-account-private-key-file=" + cp.credentials.accountKeyFile,
				"--profiling=false",
			},
			ready: cp.AnswersOK("https://" + address + "/healthz"),
		}, nil
	})
}

// controllers returns the controllers that kube-controller-manager runs: its default set or, without nodes, only those that matter then.
// The rest would only cost start-up time and memory.
func (cp *ControlPlane) controllers() string {
	if cp.hasNodes() {
		return "*"
	}
	return strings.Join(append([]string{
		"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "serviceaccount-token-controller",
		"root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller",
	}, cp.options.MoreControllers...), ",")
}

// etcd listens on unix sockets: in a private directory they need neither a port nor a certificate. etcd accepts only URLs of the form
// host:port, which makes "client:0" the name of a socket in its working directory.
const (
	etcdClientURL = "unix://client:0"
	etcdPeerURL   = "unix://peer:0"
)

// etcdSocket is the path of etcd's socket for clients.
func (cp *ControlPlane) etcdSocket() string { return filepath.Join(cp.Dir, "etcd", "client:0") }

func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	return cp.startServer(ctx, "etcd", func() (launch, error) {
		return launch{
			args: []string{
				"--data-dir=data",
				"--unsafe-no-fsync", // nothing here has to survive a crash of the machine
				"--listen-client-urls=" + etcdClientURL,
				"--advertise-client-urls=" + etcdClientURL,
				"--listen-peer-urls=" + etcdPeerURL,
				"--initial-advertise-peer-urls=" + etcdPeerURL,
				"--initial-cluster=default=" + etcdPeerURL,
				"--log-level=warn",
			},
			ready: func(ctx context.Context) error {
				connection, err := (&net.Dialer{}).DialContext(ctx, "unix", cp.etcdSocket())
				if err != nil {
					return err
				}
				return connection.Close()
			},
		}, nil
	})
}

// fluxNamespace is the namespace that Flux's controllers are configured to run in.
const fluxNamespace = "flux-system"

const kustomizeController = "kustomize-controller"

func (cp *ControlPlane) startSourceController(ctx context.Context) error {
	storage := filepath.Join(cp.Dir, "source-controller", "storage")
	if err := os.MkdirAll(storage, 0o700); err != nil {
		return err
	}
	return cp.startServer(ctx, "source-controller", func() (launch, error) {
		addresses, err := cp.freeAddresses(2)
		if err != nil {
			return launch{}, err
		}
		cp.SourceAddr = addresses[0]
		health := addresses[1]
		return launch{
			args: []string{
				"--storage-path=" + storage,
				"--storage-addr=" + cp.SourceAddr,
				"--storage-adv-addr=" + cp.SourceAddr,
				"--health-addr=" + health,
				"--metrics-addr=0",
				"--enable-leader-election=false",
				"--watch-all-namespaces=true",
			},
			env:   cp.fluxEnvironment(),
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}

// startKustomizeController starts kustomize-controller with the rights of the administrator, as Flux installs it.
func (cp *ControlPlane) startKustomizeController(ctx context.Context) error {
	return cp.startServer(ctx, kustomizeController, func() (launch, error) {
		addresses, err := cp.freeAddresses(1)
		if err != nil {
			return launch{}, err
		}
		health := addresses[0]
		args := []string{
			"--health-addr=" + health,
			"--metrics-addr=0",
			"--enable-leader-election=false",
			"--watch-all-namespaces=true",
			"--requeue-dependency=1s",
		}
		if cp.EventsAddr != "" {
			args = append(args, "--events-addr="+cp.EventsAddr)
		}
		return launch{args: args, env: cp.fluxEnvironment(), ready: cp.AnswersOK("http://" + health + "/readyz")}, nil
	})
}

func (cp *ControlPlane) startNotificationController(ctx context.Context) error {
	return cp.startServer(ctx, "notification-controller", func() (launch, error) {
		addresses, err := cp.freeAddresses(3)
		if err != nil {
			return launch{}, err
		}
		cp.EventsAddr = "http://" + addresses[0] + "/"
		cp.ReceiverURL = "http://" + addresses[2]
		health := addresses[1]
		return launch{
			args: []string{
				"--events-addr=" + addresses[0],
				"--receiverAddr=" + addresses[2],
				"--health-addr=" + health,
				"--metrics-addr=0",
				"--enable-leader-election=false",
				"--watch-all-namespaces=true",
			},
			env:   cp.fluxEnvironment(),
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}

func (cp *ControlPlane) fluxEnvironment() []string {
	return []string{"KUBECONFIG=" + cp.KubeconfigPath, "RUNTIME_NAMESPACE=" + fluxNamespace}
}
