package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// getOptions are the flags of "get".
type getOptions struct {
	everywhere, watch       bool
	output, selector, stack string
	chunkSize               int64
}

// formats are the values of the flag --output.
func formats() []string { return []string{"wide", "json", "yaml", "name"} }

func (s *session) get() *cobra.Command {
	return group("get", "Show Stacks, Workspaces, Updates and StackRollouts",
		s.getKind(stacks(), "Show Stacks: the revision that is deployed, and whether they are ready"),
		s.getKind(workspaces(), "Show Workspaces: where pulumi runs"),
		s.getKind(updates(), "Show Updates: operations that run, wait or have ended, the oldest first"),
		s.getKind(rollouts(), "Show StackRollouts: the revision that reaches Stacks, and how many have it"))
}

func (s *session) getKind(kind kind, short string) *cobra.Command {
	options := &getOptions{}
	cmd := &cobra.Command{
		Use: kind.plural + " [NAME]", Aliases: []string{kind.name}, Short: short,
		Example:           fmt.Sprintf("  %[1]s get %[2]s -A\n  %[1]s get %[2]s -w -o wide", invocation(s.Program), kind.plural),
		Args:              arguments(cobra.MatchAll(cobra.MaximumNArgs(1), options.check)),
		ValidArgsFunction: s.completeNames(kind),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
			c.chunkSize = options.chunkSize
			return (&getter{session: s, cluster: c, kind: kind, options: *options, named: len(args) == 1}).run(ctx, args)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&options.everywhere, "all-namespaces", "A", false, "Show those in all namespaces.")
	flags.BoolVarP(&options.watch, "watch", "w", false, "Go on and show each change.")
	flags.StringVarP(&options.output, "output", "o", "", "The format: "+strings.Join(formats(), ", ")+".")
	flags.StringVarP(&options.selector, "selector", "l", "", "Show those whose labels match, such as 'team=network'.")
	flags.Int64Var(&options.chunkSize, "chunk-size", defaultChunkSize, "Read so many objects with one call; 0 reads all.")
	if kind.name == updates().name {
		flags.StringVar(&options.stack, "stack", "", "Show those of this Stack.")
		_ = cmd.RegisterFlagCompletionFunc("stack", s.completeNames(stacks())) // fails for a flag that does not exist
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp)) // as above
	return cmd
}

func (o *getOptions) check(_ *cobra.Command, args []string) error {
	if o.output != "" && !slices.Contains(formats(), o.output) {
		return fmt.Errorf("unknown format %q: use one of %s", o.output, strings.Join(formats(), ", "))
	}
	if len(args) > 0 && (o.everywhere || o.selector != "" || o.stack != "") {
		return errors.New("a name goes with neither --all-namespaces nor --selector nor --stack")
	}
	return nil
}

// getter shows objects of one kind.
type getter struct {
	*session
	cluster *cluster
	kind    kind
	options getOptions
	// named is whether the command names one object.
	named bool
	// wanted reports whether an object is shown; nil shows all objects.
	wanted func(client.Object) bool
	// versions are the resource versions of the objects that were shown.
	versions map[client.ObjectKey]string
	table    *print.Table
}

func (g *getter) run(ctx context.Context, names []string) error {
	g.versions = map[client.ObjectKey]string{}
	query, err := g.query(names)
	if err != nil {
		return failed(exitUsage, "%w", err)
	}
	objects, version, err := g.list(ctx, query)
	if err != nil {
		return err
	}
	if g.named && len(objects) == 0 {
		return fmt.Errorf("%s %q does not exist in namespace %q", g.kind.name, names[0], g.cluster.namespace)
	}
	if err := g.show(ctx, objects); err != nil || !g.options.watch {
		return err
	}
	return g.follow(ctx, query, version)
}

// query returns the options for a list or watch on the API server.
func (g *getter) query(names []string) ([]client.ListOption, error) {
	var query []client.ListOption
	if !g.options.everywhere {
		query = append(query, client.InNamespace(g.cluster.namespace))
	}
	if len(names) > 0 {
		query = append(query, client.MatchingFields{"metadata.name": names[0]})
	}
	terms := slices.DeleteFunc([]string{g.options.selector, ""}, func(term string) bool { return term == "" })
	if g.options.stack != "" {
		terms = append(terms, pulumiv1.StackNameLabel+"="+g.options.stack)
	}
	selector, err := labels.Parse(strings.Join(terms, ","))
	if err != nil {
		return nil, fmt.Errorf("read the selector: %w", err)
	}
	return append(query, client.MatchingLabelsSelector{Selector: selector}), nil
}

func (g *getter) list(ctx context.Context, query []client.ListOption) ([]client.Object, string, error) {
	list, err := g.newList()
	if err != nil {
		return nil, "", err
	}
	if err := g.cluster.list(ctx, list, query...); err != nil {
		return nil, "", err
	}
	var objects []client.Object
	err = apimeta.EachListItem(list, func(object runtime.Object) error {
		if object := object.(client.Object); g.wanted == nil || g.wanted(object) {
			objects = append(objects, object)
		}
		return nil
	})
	g.kind.order(objects)
	return objects, list.GetResourceVersion(), err
}

// newList returns a list for what is read. What programs get has all fields, also those of an API that is newer than this program.
func (g *getter) newList() (client.ObjectList, error) {
	list := g.kind.newList()
	if g.wanted != nil || g.options.output != "json" && g.options.output != "yaml" {
		return list, nil
	}
	kind, err := g.cluster.client.GroupVersionKindFor(list)
	if err != nil {
		return nil, fmt.Errorf("find the kind of %s: %w", g.kind.plural, err)
	}
	whole := &unstructured.UnstructuredList{}
	whole.SetGroupVersionKind(kind)
	return whole, nil
}

// follow shows each change until the context ends.
func (g *getter) follow(ctx context.Context, query []client.ListOption, version string) error {
	for ctx.Err() == nil {
		if err := g.stream(ctx, query, version); err != nil && ctx.Err() == nil {
			return err
		}
		// The API server ends each watch after a while. The new list contains the changes that were missed in the meantime.
		objects, newer, err := g.list(ctx, query)
		if err != nil {
			return err
		}
		changed := slices.DeleteFunc(objects, func(object client.Object) bool {
			return g.versions[client.ObjectKeyFromObject(object)] == object.GetResourceVersion()
		})
		if err := g.show(ctx, changed); err != nil {
			return err
		}
		version = newer
	}
	return ctx.Err()
}

// stream shows the changes that one watch reports.
func (g *getter) stream(ctx context.Context, query []client.ListOption, version string) error {
	options := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}}
	for _, option := range query {
		option.ApplyToList(options)
	}
	list, err := g.newList()
	if err != nil {
		return err
	}
	watcher, err := g.cluster.client.Watch(ctx, list, options)
	if err != nil {
		return explained(err, "watch %s", g.kind.plural)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(client.Object)
		if !ok || event.Type == watch.Bookmark || event.Type == watch.Error {
			return nil // the list comes next
		}
		if event.Type == watch.Deleted {
			delete(g.versions, client.ObjectKeyFromObject(object))
			continue
		}
		if g.wanted != nil && !g.wanted(object) {
			continue
		}
		if err := g.show(ctx, []client.Object{object}); err != nil {
			return err
		}
	}
	return nil
}

// show writes the objects in the requested format.
func (g *getter) show(ctx context.Context, objects []client.Object) error {
	for _, object := range objects {
		g.versions[client.ObjectKeyFromObject(object)] = object.GetResourceVersion()
	}
	switch g.options.output {
	case "", "wide":
		g.showTable(ctx, objects)
		return nil
	case "name":
		return g.showEach(objects, &printers.NamePrinter{})
	case "json":
		return g.showDocument(objects, &printers.JSONPrinter{})
	}
	return g.showDocument(objects, &printers.YAMLPrinter{})
}

func (g *getter) showTable(ctx context.Context, objects []client.Object) {
	var columns []column
	var headings []string
	if g.options.everywhere {
		columns = append(columns, column{heading: "NAMESPACE", cell: text(client.Object.GetNamespace)})
	}
	columns = append(columns, g.kind.columns...)
	columns = slices.DeleteFunc(columns, func(column column) bool { return column.wide && g.options.output != "wide" })
	for _, column := range columns {
		headings = append(headings, column.heading)
	}
	if g.table == nil {
		if len(objects) == 0 && !g.options.watch {
			g.log.Line("No %s found%s.", g.kind.plural, g.place())
			return
		}
		g.table = print.NewTable(g.out, headings...)
	}
	var rows [][]print.Cell
	find := &finder{cluster: g.cluster, ctx: ctx, lists: len(objects) > 1, everywhere: g.options.everywhere}
	for _, object := range objects {
		var row []print.Cell
		for _, column := range columns {
			if column.look != nil {
				row = append(row, column.look(find, object))
			} else {
				row = append(row, column.cell(object, g.Now()))
			}
		}
		rows = append(rows, row)
	}
	g.table.Write(rows...)
}

func (g *getter) place() string {
	if g.options.everywhere {
		return ""
	}
	return fmt.Sprintf(" in namespace %q", g.cluster.namespace)
}

// showEach prints one object after the other.
func (g *getter) showEach(objects []client.Object, printer printers.ResourcePrinter) error {
	for _, object := range objects {
		if err := g.complete(object); err != nil {
			return err
		}
		if err := printer.PrintObj(object, g.out); err != nil {
			return fmt.Errorf("print %s %s: %w", g.kind.name, object.GetName(), err)
		}
	}
	return nil
}

// showDocument prints one object, or a list of objects, for programs.
func (g *getter) showDocument(objects []client.Object, printer printers.ResourcePrinter) error {
	if g.named || g.options.watch {
		return g.showEach(objects, printer)
	}
	list := &metav1.List{APIVersion: "v1", Kind: "List", Items: []runtime.RawExtension{}}
	for _, object := range objects {
		if err := g.complete(object); err != nil {
			return err
		}
		list.Items = append(list.Items, runtime.RawExtension{Object: object})
	}
	if err := printer.PrintObj(list, g.out); err != nil {
		return fmt.Errorf("print the list: %w", err)
	}
	return nil
}

// complete adds the kind, which lists leave out, and removes the managed fields, which users do not read.
func (g *getter) complete(object client.Object) error {
	known, err := g.cluster.client.GroupVersionKindFor(object)
	if err != nil {
		return fmt.Errorf("find the kind of %s: %w", object.GetName(), err)
	}
	object.GetObjectKind().SetGroupVersionKind(known)
	object.SetManagedFields(nil)
	return nil
}
