// Package podstage sets up the whole running system on a real cluster: source-controller and stack-controller as pods in
// flux-system, installed from config/default with images of the source tree, and every workspace in a pod of its own. What
// Flux's NetworkPolicies would drop is dropped.
package podstage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/images"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// ControllerName is the name of stack-controller's Deployment and ServiceAccount in cluster.FluxNamespace.
const ControllerName = "stack-controller"

// Options say how the system is set up.
type Options struct {
	// Log gets a line per step; nil discards them.
	Log io.Writer
	// Dir holds everything; see cluster.Options.
	Dir string
	// ControllerArgs are further flags of stack-controller.
	ControllerArgs []string
	// WithNotificationController runs Flux's notification-controller too and sends events to it.
	WithNotificationController bool
	// WithoutController leaves stack-controller and its CRDs out: for those who install it.
	WithoutController bool
}

// Stage is the running system.
type Stage struct {
	*stage.Apps
	// Cluster has the API server, the node and Flux.
	Cluster *cluster.Cluster
	// Images are those that the node has.
	Images Images

	options Options
}

// Images are the container images of the system.
type Images struct {
	Controller, Agent, Pulumi, Busybox, SourceController images.Image
	// NotificationController is there when the options ask for it.
	NotificationController images.Image
}

// Start builds the images, starts the cluster and installs everything, and returns when stack-controller is ready. When it
// fails, it has stopped what it had started.
func Start(ctx context.Context, options Options) (*Stage, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	s := &Stage{options: options}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Stage) start(ctx context.Context) (err error) {
	if err := s.buildImages(ctx); err != nil {
		return err
	}
	clusterOptions := cluster.Options{
		Log:    s.options.Log,
		Dir:    s.options.Dir,
		Images: []string{s.Images.Busybox.Tar, s.Images.Pulumi.Tar, s.Images.Controller.Tar, s.Images.Agent.Tar},
	}
	if s.options.WithoutController {
		clusterOptions.CRDs = []string{}
	}
	if s.Cluster, err = cluster.Start(ctx, clusterOptions); err != nil {
		return err
	}
	if s.Apps, err = s.newApps(); err != nil {
		return err
	}
	if err := s.Cluster.InstallFlux(ctx, s.Images.SourceController); err != nil {
		return err
	}
	if s.options.WithNotificationController {
		if err := s.Cluster.InstallNotificationController(ctx, s.Images.NotificationController); err != nil {
			return err
		}
	}
	if err := s.Cluster.EnforceNetworkPolicies(ctx); err != nil {
		return err
	}
	if s.options.WithoutController {
		return nil
	}
	begin := time.Now()
	if err := s.InstallController(ctx); err != nil {
		return err
	}
	s.progress(fmt.Sprintf("stack-controller is ready after %s", time.Since(begin).Round(100*time.Millisecond)))
	return nil
}

// buildImages makes the images that are not cached yet.
func (s *Stage) buildImages(ctx context.Context) error {
	// One at a time: each of them keeps all processors busy when it has to be compiled.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(1)
	builds := map[*images.Image]func(context.Context, func(string)) (images.Image, error){
		&s.Images.Controller:       images.Controller,
		&s.Images.Agent:            images.Agent,
		&s.Images.Pulumi:           images.Pulumi,
		&s.Images.Busybox:          images.Busybox,
		&s.Images.SourceController: images.SourceController,
	}
	if s.options.WithNotificationController {
		builds[&s.Images.NotificationController] = images.NotificationController
	}
	for target, build := range builds {
		group.Go(func() (err error) {
			*target, err = build(ctx, s.progress)
			return err
		})
	}
	return group.Wait()
}

func (s *Stage) newApps() (*stage.Apps, error) {
	apps := &stage.Apps{
		BackendURL:      "file://" + stateMount,
		NamespaceLabels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		Prepare:         s.prepare,
		Log: func(ctx context.Context, lines int) string {
			log, err := s.ControllerLog(ctx, lines)
			if err != nil {
				return err.Error()
			}
			return log
		},
	}
	if err := makeStateDir(s.StateDir()); err != nil {
		return nil, err
	}
	var err error
	if apps.Client, err = stage.NewClient(s.Cluster.Config()); err != nil {
		return nil, err
	}
	if apps.Git, err = gitserver.Start(filepath.Join(s.Cluster.Dir, "git")); err != nil {
		return nil, err
	}
	listener, err := s.Cluster.Listen("tcp", s.Cluster.NodeAddress+":0")
	if err != nil {
		apps.Git.Stop()
		return nil, fmt.Errorf("listen for pods that clone: %w", err)
	}
	return apps, apps.Git.Publish(listener)
}

// Stop ends everything, pods included, and removes all files. It may be called more than once.
func (s *Stage) Stop() error {
	if s.Apps != nil {
		s.Git.Stop()
	}
	return s.Cluster.Stop()
}

func (s *Stage) progress(line string) { _, _ = fmt.Fprintln(s.options.Log, line) }

// RunTests is the body of a package's TestMain, as cluster.RunTests is.
func RunTests(m interface{ Run() int }, options Options, setup func(*Stage)) (code int) {
	if err := cluster.Missing(); err != nil {
		return cluster.SkipAll(err)
	}
	if options.Log == nil {
		options.Log = os.Stderr
	}
	s, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := s.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	setup(s)
	return m.Run()
}
