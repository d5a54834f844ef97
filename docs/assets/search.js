/* Set before the theme's search worker, which looks for each word of a query as a prefix: "it" would find "iteration",
   and "buckets" no "bucket". Words without meaning go, the others lose their endings. */
{
  const listen = self.addEventListener.bind(self);
  const stemmed = (word) => {
    const stem = String(self.lunr.stemmer(new self.lunr.Token(word)));
    let end = 0;
    while (end < stem.length && stem[end] === word[end]) end++;
    return end < 4 ? word : word.slice(0, end);
  };
  const asked = (query) => {
    const words = query.toLowerCase().split(/[\s?!,;:"]+/);
    const kept = words.filter((word) => word.length > 1 && self.lunr.stopWordFilter(word));
    return kept.map(stemmed).join(" ") || query;
  };
  self.addEventListener = (kind, answer) =>
    listen(kind, ({ data }) => answer({ data: data.type === 2 ? { ...data, data: asked(data.data) } : data }));
}
