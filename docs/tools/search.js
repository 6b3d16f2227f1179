// Put before the theme's worker. The theme searches for all that begins with a word as typed: "in" finds "incident", and "rotating"
// not "rotation". Here a query loses its stop words, and its words become stems, as those of the index. Only the last word, which
// may be incomplete, also stands for what begins with it, for a tenth of the weight.
addEventListener("message", ({ data: message }) => {
  if (message.type === 0) {
    // The index. The stem of a stem is another one at times, and the theme takes the stem of what it gets.
    const porter = lunr.stemmer;
    lunr.stemmer = (token) => porter(porter(porter(token)));
    lunr.Pipeline.registerFunction(lunr.stemmer, "stem of a stem");
  } else {
    const words = message.data.split(lunr.tokenizer.separator).map((word) => word.toLowerCase()).filter(lunr.stopWordFilter);
    const stems = words.map((word) => `${lunr.stemmer(new lunr.Token(word))}`);
    message.data = [...stems.map((stem) => `${stem}^10`), ...stems.slice(-1)].join(" ");
  }
});
