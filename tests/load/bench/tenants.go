package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// victimName is the namespace of one tenant; greedyName and otherName are the namespaces of a heavy tenant.
	victimName, greedyName, otherName = "tenant-victim", "tenant-heavy", "tenant-heavy-other"
	// crowd is the number of Stacks of the heavy tenant, which creates other objects too.
	crowd = 1000
	// pressureTime bounds the time until all load of the heavy tenant exists.
	pressureTime = 5 * time.Minute
)

// tenants measures the time from a commit to the success of a tenant's Stack while another tenant causes as much load as it can, beside the
// same on a quiet system.
func (b *podBench) tenants(ctx context.Context) error {
	app, stack, err := b.provide(ctx, victimName)
	if err != nil {
		return err
	}
	if err := b.deploy(ctx, app, named(stack, app.Name)); err != nil {
		return err
	}
	heavy, other, err := b.heavyTenant(ctx)
	if err != nil {
		return err
	}
	victim := subject{apps: b.system.Apps, app: app, calls: b.calls(), bare: b.bare.took}
	quiet, err := measureCommits(ctx, "quiet", b.runs, victim)
	if err != nil {
		return err
	}
	quiet.print(b.out, "one commit, quiet")
	beside, err := b.besidePressure(ctx, victim, heavy, other)
	if err != nil {
		return err
	}
	beside.print(b.out, fmt.Sprintf("one commit, beside another tenant's %d Stacks, tarpits, bombs, archives and agents", crowd))
	ratio := beside.rollout.Median().Seconds() / quiet.rollout.Median().Seconds()
	fmt.Fprintf(b.out, "ratio to quiet: of a commit %.2f, of a bare update %.2f\n", ratio, beside.bare.Median().Seconds()/quiet.bare.Median().Seconds())
	b.limits.Check("commit → succeeded beside a heavy tenant, beside a quiet system", ratio, maxTenantsRatio)
	return b.controllerMemory(ctx)
}

// heavyTenant creates both namespaces of the heavy tenant, with a web server and a registry.
func (b *podBench) heavyTenant(ctx context.Context) (heavy, other *pressure.Tenant, err error) {
	image, err := images.Program(ctx, "tests/e2e/tenancy/fakeagent", nil)
	if err != nil {
		return nil, nil, err
	}
	if err := b.system.Cluster.LoadImage(ctx, image.Tar); err != nil {
		return nil, nil, err
	}
	registry, err := ociregistry.Start(ctx, b.system.Cluster.ControlPlane)
	if err != nil {
		return nil, nil, err
	}
	tenants := map[string]*pressure.Tenant{}
	for _, name := range []string{greedyName, otherName} {
		namespace := &corev1.Namespace{Name: name, Labels: b.system.NamespaceLabels}
		if err := b.system.Client.Create(ctx, namespace); err != nil {
			return nil, nil, fmt.Errorf("create the namespace of a tenant: %w", err)
		}
		client, err := b.tenantClient(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		tenants[name] = &pressure.Tenant{Client: client, Namespace: name, Image: image.Reference, Registry: registry}
	}
	heavy, other = tenants[greedyName], tenants[otherName]
	if err := heavy.Serve(ctx); err != nil {
		return nil, nil, err
	}
	other.Web = heavy.Web
	return heavy, other, nil
}

// tenantClient returns the client of an account that may do everything in the namespace. The administrator's client would not show the
// same: the API server serves the administrator's requests before all others.
func (b *podBench) tenantClient(ctx context.Context, namespace string) (client.Client, error) {
	const name = "tenant"
	named := metav1.ObjectMeta{Namespace: namespace, Name: name}
	for _, object := range []client.Object{&corev1.ServiceAccount{ObjectMeta: named}, &rbacv1.RoleBinding{
		ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}} {
		if err := b.system.Client.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("create the account of a tenant: %w", err)
		}
	}
	config, err := b.system.Cluster.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	// The requests of one tenant to an API server that shares two processors with everything else slow down other tenants even without the
	// controller: with 200 requests per second, a bare "pulumi up" takes 2.5 times as long.
	config.QPS, config.Burst = 50, 100
	return localsystem.NewClient(config)
}

// besidePressure measures commits, and which programs use the machine, while the heavy tenant causes as much load as it can.
func (b *podBench) besidePressure(ctx context.Context, victim subject, heavy, other *pressure.Tenant) (measured *measurements, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- heavy.All(ctx, crowd, func() { close(begun) }, other) }()
	select {
	case <-begun:
	case err := <-ended:
		return nil, err
	case <-time.After(pressureTime):
		return nil, errors.New("it takes too long to create what a heavy tenant has")
	}
	err = b.account(ctx, victim.app.Namespace, func() (err error) {
		measured, err = measureCommits(ctx, "beside", b.runs, victim)
		return err
	})
	stop()
	return measured, errors.Join(err, <-ended)
}

// account prints the processor time of each program, and the requests to the API server, during the call.
func (b *podBench) account(ctx context.Context, namespace string, call func() error) error {
	spent, err := b.spent(ctx, namespace)
	if err != nil {
		return err
	}
	requests, err := b.apiRequests(ctx)
	if err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	requestsAfter, err := b.apiRequests(ctx)
	if err != nil {
		return err
	}
	spentAfter, err := b.spent(ctx, namespace)
	if err != nil {
		return err
	}
	b.printRequests(requests, requestsAfter, crowd)
	b.printSpent([]map[string]time.Duration{difference(spent, spentAfter)})
	return nil
}

// controllerMemory prints how much of its memory limit the controller has used, and fails if the controller was restarted.
func (b *podBench) controllerMemory(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.system.Client.List(ctx, pods, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podsystem.ControllerName}); err != nil {
		return fmt.Errorf("list the controller's pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		container, err := cluster.FindContainer(pod, pod.Spec.Containers[0].Name)
		if err != nil {
			return err
		}
		limit, peak, err := container.MemoryLimit()
		if err != nil {
			return err
		}
		restarts := pod.Status.ContainerStatuses[0].RestartCount
		fmt.Fprintf(b.out, "the controller used %s of its %s at most; restarts: %d\n", measure.Megabytes(peak), measure.Megabytes(limit), restarts)
		if restarts > 0 {
			return fmt.Errorf("the controller was started again %d times", restarts)
		}
	}
	return nil
}

// apiRequests returns how many requests of each kind the API server has answered, without those that measure.CountRequests leaves out.
func (b *podBench) apiRequests(ctx context.Context) (map[string]int, error) {
	metrics, err := b.system.Cluster.Kubectl(ctx, "get", "--raw=/metrics")
	if err != nil {
		return nil, err
	}
	return measure.CountRequests(metrics), nil
}

// printRequests prints the requests between two measurements and the number per Stack, the most frequent first.
func (b *podBench) printRequests(before, after map[string]int, stacks int) {
	made := map[string]int{}
	sum := 0
	for kind, count := range after {
		if count > before[kind] {
			made[kind] = count - before[kind]
			sum += made[kind]
		}
	}
	t := measure.NewTable(b.out, fmt.Sprintf("requests to the API server, %d Stacks", stacks), "number", "per Stack")
	kinds := slices.SortedFunc(maps.Keys(made), func(a, b string) int {
		return cmp.Or(cmp.Compare(made[b], made[a]), cmp.Compare(a, b))
	})
	row := func(name string, count int) {
		t.Cells(name, strconv.Itoa(count), fmt.Sprintf("%.1f", float64(count)/float64(stacks)))
	}
	for _, kind := range kinds {
		row(kind, made[kind])
	}
	row("sum", sum)
	t.Flush()
}
