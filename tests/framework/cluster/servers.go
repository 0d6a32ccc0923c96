package cluster

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	nodeUser      = "system:node:" + nodeName
	schedulerUser = "system:kube-scheduler"
	proxyUser     = "system:kube-proxy"
)

// users returns the users as which the servers authenticate. Kubernetes grants them their rights.
func users() map[string][]string {
	return map[string][]string{nodeUser: {"system:nodes"}, schedulerUser: nil, proxyUser: nil}
}

//go:embed config
var configFiles embed.FS

// configure writes the configuration file with its variables replaced by values, and returns its path.
func (c *Cluster) configure(name string, more ...string) (string, error) {
	content, err := configFiles.ReadFile("config/" + name)
	if err != nil {
		return "", fmt.Errorf("read the configuration %s: %w", name, err)
	}
	variables := append(more,
		"${DIR}", c.Dir, "${NAME}", nodeName, "${NODE}", nodeAddress, "${PODS}", podRange, "${CGROUP}", c.node.cgroup, "${CNI_PLUGINS}", cniPlugins)
	path := filepath.Join(c.Dir, "config", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("create the directory of the configuration: %w", err)
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(variables...).Replace(string(content))), 0o700); err != nil {
		return "", fmt.Errorf("write the configuration %s: %w", name, err)
	}
	return path, nil
}

// startContainerd starts containerd and loads the images.
func (c *Cluster) startContainerd(ctx context.Context) error {
	pause, err := images.Pause(ctx, c.logln)
	if err != nil {
		return err
	}
	if err := c.installPlugins(); err != nil {
		return err
	}
	paths := map[string]string{}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		if paths[name], err = tools.Path(ctx, name, c.logln); err != nil {
			return err
		}
	}
	c.ctr = paths["ctr"]
	config, err := c.configure("containerd.toml", "${PAUSE}", pause.Reference, "${SHIM}", paths["containerd-shim-runc-v2"])
	if err != nil {
		return err
	}
	_, err = c.startOnNode(ctx, controlplane.Server{
		Name: "containerd",
		Path: paths["containerd"],
		Args: []string{"--config=" + config, "--log-level=warn"},
		Ready: func(ctx context.Context) error {
			return c.runOnNode(ctx, nil, c.ctr, "--timeout=2s", "version")
		},
	})
	if err != nil {
		return err
	}
	for _, tarball := range append([]string{pause.Tar}, c.options.Images...) {
		if err := c.LoadImage(ctx, tarball); err != nil {
			return err
		}
	}
	return nil
}

// installPlugins creates the directory in which containerd finds CNI plugins and their configuration.
func (c *Cluster) installPlugins() error {
	for _, name := range []string{"cni/pods.conflist", "cni/ptp-in-group"} {
		if _, err := c.configure(name); err != nil {
			return err
		}
	}
	for _, name := range []string{"host-local", "loopback", "portmap"} {
		if err := os.Symlink(filepath.Join(cniPlugins, name), filepath.Join(c.Dir, "config", "cni", name)); err != nil {
			return fmt.Errorf("install the CNI plugin %s: %w", name, err)
		}
	}
	return nil
}

func (c *Cluster) startScheduler(ctx context.Context) error {
	kubeconfig, err := c.WriteKubeconfig("kube-scheduler", c.TokenConfig(schedulerUser))
	if err != nil {
		return err
	}
	path, err := tools.Path(ctx, "kube-scheduler", c.logln)
	if err != nil {
		return err
	}
	_, err = c.StartServer(ctx, controlplane.Server{
		Name: "kube-scheduler",
		Path: path,
		Args: []string{
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--authentication-tolerate-lookup-failure",
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
		},
		Ready: c.AnswersOK("https://127.0.0.1:10259/healthz"),
	})
	return err
}

func (c *Cluster) startProxy(ctx context.Context) error {
	if _, err := c.WriteKubeconfig("kube-proxy", c.TokenConfig(proxyUser)); err != nil {
		return err
	}
	config, err := c.configure("kube-proxy.yaml")
	if err != nil {
		return err
	}
	path, err := tools.Path(ctx, "kube-proxy", c.logln)
	if err != nil {
		return err
	}
	_, err = c.startOnNode(ctx, controlplane.Server{
		Name:  "kube-proxy",
		Path:  path,
		Args:  []string{"--config=" + config},
		Ready: c.AnswersOK("http://127.0.0.1:10256/livez"), // healthz is for load balancers, and also requires a healthy node
	})
	return err
}

// startDNS starts the name server of the cluster. It is a process on the node, so it needs neither a service nor a pod.
func (c *Cluster) startDNS(ctx context.Context) error {
	config, err := c.configure("Corefile")
	if err != nil {
		return err
	}
	path, err := tools.Path(ctx, "coredns", c.logln)
	if err != nil {
		return err
	}
	_, err = c.StartServer(ctx, controlplane.Server{
		Name:  "coredns",
		Path:  path,
		Args:  []string{"-conf=" + config},
		Ready: c.AnswersOK("http://127.0.0.1:8181/ready"),
	})
	return err
}

func (c *Cluster) startKubelet(ctx context.Context) error {
	kubeconfig, err := c.WriteKubeconfig("kubelet", c.TokenConfig(nodeUser))
	if err != nil {
		return err
	}
	if _, err := c.configure("resolv.conf"); err != nil {
		return err
	}
	config, err := c.configure("kubelet.yaml")
	if err != nil {
		return err
	}
	path, err := tools.Path(ctx, "kubelet", c.logln)
	if err != nil {
		return err
	}
	c.kubelet, err = c.startOnNode(ctx, controlplane.Server{
		Name: "kubelet",
		Path: path,
		Args: []string{
			"--kubeconfig=" + kubeconfig,
			"--config=" + config,
			"--hostname-override=" + nodeName,
			"--node-ip=" + nodeAddress,
		},
		Ready: c.AnswersOK("http://127.0.0.1:10248/healthz"),
	})
	return err
}
