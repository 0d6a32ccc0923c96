package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// EnforceNetworkPolicies has the node enforce what Flux's NetworkPolicies in the namespace flux-system say (see InstallFlux): no
// other NetworkPolicy has an effect in this cluster. Pods of other namespaces reach the ports for metrics and for webhooks.
func (c *Cluster) EnforceNetworkPolicies(ctx context.Context) error {
	return c.IsolateNamespace(ctx, FluxNamespace, metricsPort, webhookPort)
}

// IsolateNamespace drops what pods of other namespaces send to pods of this one, unless it goes to one of the TCP ports. As
// with a NetworkPolicy, connections that exist go on, and the node itself, with its probes, is not restricted.
func (c *Cluster) IsolateNamespace(ctx context.Context, namespace string, ports ...int) error {
	group := linkGroup(namespace)
	between := []string{
		"-m", "devgroup", "--dst-group", group, "-m", "devgroup", "!", "--src-group", group,
		"-m", "conntrack", "--ctstate", "NEW,INVALID",
	}
	// Each rule goes before what is there already, so the exceptions come last.
	rules := [][]string{append(between[:len(between):len(between)], "-j", "DROP")}
	if len(ports) > 0 {
		allowed := make([]string, 0, len(ports))
		for _, port := range ports {
			allowed = append(allowed, strconv.Itoa(port))
		}
		rules = append(rules, append(between[:len(between):len(between)],
			"-p", "tcp", "-m", "multiport", "--dports", strings.Join(allowed, ","), "-j", "ACCEPT"))
	}
	for _, rule := range rules {
		if err := c.runOnNode(ctx, nil, "iptables", append([]string{"-w", "-I", "FORWARD"}, rule...)...); err != nil {
			return fmt.Errorf("isolate namespace %s: %w", namespace, err)
		}
	}
	return nil
}

// linkGroup is the group that the CNI plugin puts the links of the namespace's pods into.
func linkGroup(namespace string) string {
	sum := sha256.Sum256([]byte(namespace))
	return "0x" + hex.EncodeToString(sum[:])[:7]
}
