package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// EnforceNetworkPolicies makes the node enforce the rules of Flux's NetworkPolicies in the namespace flux-system (see InstallFlux). No
// other NetworkPolicy has an effect in this cluster. Pods of other namespaces can reach the ports for metrics and for webhooks.
func (c *Cluster) EnforceNetworkPolicies(ctx context.Context) error {
	return c.IsolateNamespace(ctx, FluxNamespace, metricsPort, webhookPort)
}

// IsolateNamespace drops packets from pods of other namespaces to pods of this namespace, except to the given TCP ports. As with a
// NetworkPolicy, existing connections continue, and the node itself, with its probes, is not restricted.
func (c *Cluster) IsolateNamespace(ctx context.Context, namespace string, ports ...int) error {
	group := linkGroup(namespace)
	between := []string{
		"-m", "devgroup", "--dst-group", group, "-m", "devgroup", "!", "--src-group", group,
		"-m", "conntrack", "--ctstate", "NEW,INVALID",
	}
	// Each rule is inserted before the existing rules, so the exceptions come last here.
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

// linkGroup returns the group of the network links of the namespace's pods. The CNI plugin puts the links into it.
func linkGroup(namespace string) string {
	sum := sha256.Sum256([]byte(namespace))
	return "0x" + hex.EncodeToString(sum[:])[:7]
}
