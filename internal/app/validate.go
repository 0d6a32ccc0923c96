package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/features"

	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/spiffe"
)

const (
	// noConfigs as the value of --watch-configs-label-selector means that no Secrets and ConfigMaps are watched.
	noConfigs = "none"
	// maxKnownHosts bounds the file of known hosts, in bytes. It has room for ten thousand servers.
	maxKnownHosts = 4 << 20
)

// validate returns an error for settings that cannot work, so that the controller never starts with a setting that it would have to ignore.
// It also parses the selectors and reads the files that the flags name.
func (o *options) validate() (err error) {
	if o.version {
		return nil
	}
	if err := errors.Join(o.validateRanges(), o.validateNames(), o.validatePprof()); err != nil {
		return err
	}
	if err := o.features.SupportedFeatures(featureGates(), nil); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if o.externalArtifact, err = features.Enabled(runtimectrl.FeatureGateExternalArtifact); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if !o.watch.AllNamespaces && o.runtimeNamespace == "" {
		return fmt.Errorf("--watch-all-namespaces=false needs the environment variable %s", runtimectrl.EnvRuntimeNamespace)
	}
	if o.selector, err = labels.Parse(o.watch.LabelSelector); err != nil {
		return fmt.Errorf("--watch-label-selector: %w", err)
	}
	if o.watch.ConfigsLabelSelector != noConfigs {
		if o.configs, err = labels.Parse(o.watch.ConfigsLabelSelector); err != nil {
			return fmt.Errorf("--watch-configs-label-selector: %w", err)
		}
	}
	if o.dependencyKinds, err = objectwatch.ParseKinds(o.dependencyKindNames); err != nil {
		return fmt.Errorf("--dependency-kinds: %w", err)
	}
	if err := o.mtls.validate(); err != nil {
		return err
	}
	if o.git.knownHostsFile != "" {
		if o.git.knownHosts, err = file.Read(o.git.knownHostsFile, maxKnownHosts); err != nil {
			return fmt.Errorf("--git-known-hosts-file: %w", err)
		}
	}
	if o.workspace.runtime == runtimeProcess {
		return o.workspace.validateProcess()
	}
	return o.workspace.validatePod()
}

// validate parses the SPIFFE IDs, and looks for the address of the Workload API when there are any.
func (o *mutualTLSOptions) validate() (err error) {
	if o.artifactServers, err = spiffe.ParsePeers(o.artifactServerIDs); err != nil {
		return fmt.Errorf("--%s: %w", spiffe.ArtifactServer.Flag, err)
	}
	if o.eventServers, err = spiffe.ParsePeers(o.eventServerIDs); err != nil {
		return fmt.Errorf("--%s: %w", spiffe.EventServer.Flag, err)
	}
	if !o.enabled() {
		return nil
	}
	o.workloadAPI, err = spiffe.WorkloadAPIAddress()
	return err
}

func (o *options) validateRanges() error {
	for _, setting := range []struct {
		flag         string
		value, least int64
		wrong        string
	}{
		{"concurrent", int64(o.concurrent), 1, "at least 1"},
		{"max-operations", int64(o.maxOperations), 0, "at least 0"},
		{"http-retry", int64(o.artifacts.httpRetries), 0, "at least 0"},
		{"storage-max-size", o.artifacts.maxStoreSize.Value(), 1, "at least 1"},
		{"artifact-max-size", o.artifacts.maxSize.Value(), 1, "at least 1"},
		{"artifact-max-unpacked-size", o.artifacts.maxUnpackedSize.Value(), 1, "at least 1"},
		{"artifact-max-entries", int64(o.artifacts.maxEntries), 1, "at least 1"},
		{"requeue-dependency", int64(o.requeueDependency), 1, "more than 0"},
		{"http-timeout", int64(o.artifacts.httpTimeout), 1, "more than 0"},
		{"git-timeout", int64(o.git.timeout), 1, "more than 0"},
		{"git-checkout-timeout", int64(o.git.checkoutTimeout), 1, "more than 0"},
		{"min-retry-delay", int64(o.rateLimiter.MinRetryDelay), 1, "more than 0"},
		{"max-retry-delay", int64(o.rateLimiter.MaxRetryDelay), 1, "more than 0"},
		{"leader-election-retry-period", int64(o.leaderElection.RetryPeriod), 1, "more than 0"},
		{"workspace-idle-timeout", int64(o.workspace.idleTimeout), 0, "at least 0"},
	} {
		if setting.value < setting.least {
			return fmt.Errorf("--%s must be %s", setting.flag, setting.wrong)
		}
	}
	switch {
	case o.artifacts.maxStoreSize.Cmp(o.artifacts.maxSize.Quantity) < 0:
		return errors.New("--storage-max-size must not be less than --artifact-max-size")
	case o.rateLimiter.MaxRetryDelay < o.rateLimiter.MinRetryDelay:
		return errors.New("--max-retry-delay must not be less than --min-retry-delay")
	case o.leaderElection.LeaseDuration <= o.leaderElection.RenewDeadline:
		return errors.New("--leader-election-lease-duration must be more than --leader-election-renew-deadline")
	case o.leaderElection.RenewDeadline.Seconds() <= leaderelection.JitterFactor*o.leaderElection.RetryPeriod.Seconds():
		return fmt.Errorf("--leader-election-renew-deadline must be more than %v times --leader-election-retry-period", leaderelection.JitterFactor)
	case o.jitter.Percentage >= 100:
		return errors.New("--interval-jitter-percentage must be less than 100")
	}
	return nil
}

// validateNames rejects unknown values of flags that have a fixed set of values. Flux's logger would silently replace such a value by its
// default.
func (o *options) validateNames() error {
	for _, setting := range []struct {
		flag, value, names string
		known              []string
	}{
		{"log-encoding", o.log.LogEncoding, "json or console", []string{"json", "console"}},
		{"log-level", o.log.LogLevel, "trace, debug, info or error", []string{"trace", "debug", "info", "error"}},
		{"workspace-runtime", o.workspace.runtime, "pod or process", []string{runtimePod, runtimeProcess}},
		{"agent-image-pull-policy", o.workspace.agentPullPolicy, "Always, IfNotPresent or Never",
			[]string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}},
		{"agent-image-volume", o.workspace.agentVolume, "true, false or auto",
			[]string{string(pod.ByImageVolume), string(pod.ByInitContainer), string(pod.AutomaticDelivery)}},
	} {
		if !slices.Contains(setting.known, setting.value) {
			return fmt.Errorf("--%s must be %s, not %q", setting.flag, setting.names, setting.value)
		}
	}
	return nil
}

// validatePprof rejects addresses that other machines can reach: profiles contain memory, and so may contain Secrets.
func (o *options) validatePprof() error {
	if o.pprofAddr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(o.pprofAddr)
	if err != nil {
		return fmt.Errorf("--pprof-addr: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--pprof-addr must be a loopback address such as localhost:6060, not %q; kubectl port-forward reaches it", o.pprofAddr)
	}
	return nil
}

// validateProcess rejects the process runtime in a pod, where programs get the identity of the pod, unless a flag allows it. The controller
// runs in a pod when the variable is set that the kubelet sets in every pod. A kubeconfig makes no difference: programs can use the
// identity of the pod as well.
func (o *workspaceOptions) validateProcess() error {
	switch {
	case os.Getenv("KUBERNETES_SERVICE_HOST") != "" && !o.allowProcessInCluster:
		return errors.New("--workspace-runtime=process in a pod runs the programs of all tenants with the controller's ServiceAccount; " +
			"use --workspace-runtime=pod, or set --allow-process-runtime-in-cluster when every author of a Stack may do what the controller may")
	case o.defaultServiceAccount != "":
		return errors.New("--default-service-account has no effect with --workspace-runtime=process, which runs programs with the controller's identity; " +
			"use --workspace-runtime=pod")
	}
	return nil
}

func (o *workspaceOptions) validatePod() error {
	switch {
	case o.agentImage == "":
		return errors.New("--workspace-runtime=pod, the default, needs --agent-image or the environment variable AGENT_IMAGE; " +
			"on a machine of your own, --workspace-runtime=process runs pulumi without pods")
	case o.defaultServiceAccount != "" && len(validation.IsDNS1123Subdomain(o.defaultServiceAccount)) > 0:
		return fmt.Errorf("--default-service-account must be the name of a ServiceAccount, not %q", o.defaultServiceAccount)
	case len(validation.IsDNS1123Subdomain(o.clusterDomain)) > 0:
		return fmt.Errorf("--cluster-domain must be a DNS domain, not %q", o.clusterDomain)
	}
	return nil
}
